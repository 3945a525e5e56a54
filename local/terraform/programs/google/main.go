// A provider that takes the place of Google's where there is none, and no account either. It serves the schema that
// local/terraform/schema.py reads, so OpenTofu refuses whatever the real provider's schema refuses, and keeps in its state what was
// asked for, with what Google would have added (computed.json). It calls nothing, and so cannot say what Google's APIs would refuse.
package main

import (
	"log"
	"os"

	"github.com/hashicorp/terraform-plugin-go/tfprotov5"
	"github.com/hashicorp/terraform-plugin-go/tfprotov5/tf5server"
)

// The variable that names the schema's file.
const schemaVariable = "NIGHTSHIFT_TERRAFORM_SCHEMA"

func main() {
	file, err := os.ReadFile(os.Getenv(schemaVariable))
	if err != nil {
		log.Fatalf("%s must name a schema made by local/terraform: %v", schemaVariable, err)
	}
	served, err := newServer(file)
	if err != nil {
		log.Fatalf("%s: %v", os.Getenv(schemaVariable), err)
	}
	// The address is part of the handshake only: a development override names the place that it stands for.
	if err := tf5server.Serve("hashicorp/google", func() tfprotov5.ProviderServer { return served }); err != nil {
		log.Fatal(err)
	}
}
