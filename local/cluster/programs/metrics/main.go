// Serves the two metrics by which a stream's autoscalers act, under the names of Google's custom-metrics-stackdriver-adapter and in
// its place. Like Google's it is strict: another metric, another resource or another selector is refused or finds nothing.
//
// The backlog is that of the Pub/Sub emulator, whose control port knows it. Requests that wait are read from the pods themselves,
// and only from those that a PodMonitoring of their namespace selects, at the port and path that it names: managed Prometheus reads
// no others.
package main

import (
	"context"
	"net/http"
	"os"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	basecmd "sigs.k8s.io/custom-metrics-apiserver/pkg/cmd"
)

func main() {
	command := &basecmd.AdapterBase{Name: "metrics"}
	control := command.Flags().String("pubsub-control", "", "URL of the Pub/Sub emulator's control port")
	if err := command.Flags().Parse(os.Args); err != nil {
		klog.Fatalf("wrong command line: %v", err)
	}
	config, err := command.ClientConfig()
	if err != nil {
		klog.Fatalf("no configuration for a client: %v", err)
	}
	pods, err := kubernetes.NewForConfig(config)
	if err != nil {
		klog.Fatalf("no client for pods: %v", err)
	}
	objects, err := command.DynamicClient()
	if err != nil {
		klog.Fatalf("no client for PodMonitorings: %v", err)
	}
	found := &source{pods: pods, objects: objects, control: *control, http: &http.Client{Timeout: 5 * time.Second}}
	command.WithCustomMetrics(found)
	command.WithExternalMetrics(found)
	if err := command.Run(context.Background()); err != nil {
		klog.Fatalf("ended: %v", err)
	}
}
