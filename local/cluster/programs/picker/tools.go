//go:build tools

package tools

import _ "sigs.k8s.io/gateway-api-inference-extension/cmd/epp"
