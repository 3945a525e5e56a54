module nightshift.local/crds

go 1.26.0

require (
	github.com/GoogleCloudPlatform/gke-gateway-api v1.3.0
	github.com/kedacore/keda/v2 v2.21.0
	sigs.k8s.io/gateway-api v1.6.3
	sigs.k8s.io/gateway-api-inference-extension v1.5.0
)
