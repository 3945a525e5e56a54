package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/metrics/pkg/apis/custom_metrics"
	"k8s.io/metrics/pkg/apis/external_metrics"
	"sigs.k8s.io/custom-metrics-apiserver/pkg/provider"
	"sigs.k8s.io/custom-metrics-apiserver/pkg/provider/defaults"
)

const (
	backlog        = "pubsub.googleapis.com|subscription|num_undelivered_messages"
	projectID      = "resource.labels.project_id"
	subscriptionID = "resource.labels.subscription_id"
	waiting        = "prometheus.googleapis.com|vllm:num_requests_waiting|gauge"
)

var (
	podMonitorings = schema.GroupVersionResource{Group: "monitoring.googleapis.com", Version: "v1", Resource: "podmonitorings"}
	sample         = regexp.MustCompile(`^vllm:num_requests_waiting(?:\{.*\})?[ \t]+(\S+)`)
)

type source struct {
	defaults.DefaultCustomMetricsProvider
	defaults.DefaultExternalMetricsProvider
	pods    kubernetes.Interface
	objects dynamic.Interface
	control string
	http    *http.Client
}

// GetExternalMetric answers with the backlog of the one subscription that the selector names; with nothing if there is none.
// A selector without a project is refused: Google's adapter would then ask the cluster's own.
func (s *source) GetExternalMetric(
	ctx context.Context, _ string, selector labels.Selector, info provider.ExternalMetricInfo,
) (*external_metrics.ExternalMetricValueList, error) {
	if info.Metric != backlog {
		return nil, provider.NewMetricNotFoundError(schema.GroupResource{}, info.Metric)
	}
	project, name, err := subscription(selector)
	if err != nil {
		return nil, errors.NewBadRequest(err.Error())
	}
	var statistics map[string]struct {
		Undelivered int64 `json:"num_undelivered_messages"`
	}
	if err := s.get(ctx, s.control+"/subscriptions", &statistics); err != nil {
		return nil, errors.NewInternalError(err)
	}
	found := &external_metrics.ExternalMetricValueList{}
	if each, known := statistics["projects/"+project+"/subscriptions/"+name]; known {
		found.Items = append(found.Items, external_metrics.ExternalMetricValue{
			MetricName:   backlog,
			MetricLabels: map[string]string{projectID: project, subscriptionID: name},
			Timestamp:    metav1.Now(),
			Value:        *resource.NewQuantity(each.Undelivered, resource.DecimalSI),
		})
	}
	return found, nil
}

// subscription is the project and the name that the selector has to state, and nothing else.
func subscription(selector labels.Selector) (string, string, error) {
	requirements, selectable := selector.Requirements()
	named := map[string]string{}
	for _, each := range requirements {
		equal := each.Operator() == selection.Equals || each.Operator() == selection.In || each.Operator() == selection.DoubleEquals
		if equal && each.Values().Len() == 1 {
			named[each.Key()] = each.Values().List()[0]
		}
	}
	project, name := named[projectID], named[subscriptionID]
	if !selectable || len(requirements) != 2 || project == "" || name == "" {
		return "", "", fmt.Errorf("the selector is %q; it has to state one %s and one %s", selector, projectID, subscriptionID)
	}
	return project, name, nil
}

// GetMetricBySelector answers for those of the selected pods that are scraped and have answered.
func (s *source) GetMetricBySelector(
	ctx context.Context, namespace string, selector labels.Selector, info provider.CustomMetricInfo, _ labels.Selector,
) (*custom_metrics.MetricValueList, error) {
	if info.Metric != waiting || info.GroupResource.Resource != "pods" {
		return nil, provider.NewMetricNotFoundForSelectorError(info.GroupResource, info.Metric, "*", selector)
	}
	monitorings, err := s.objects.Resource(podMonitorings).Namespace(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	pods, err := s.pods.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector.String()})
	if err != nil {
		return nil, err
	}
	found := &custom_metrics.MetricValueList{}
	for _, pod := range pods.Items {
		url := target(pod, monitorings.Items)
		if url == "" {
			continue
		}
		value, err := s.scrape(ctx, url)
		if err != nil {
			continue // a pod that does not answer has no sample
		}
		found.Items = append(found.Items, custom_metrics.MetricValue{
			DescribedObject: custom_metrics.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: namespace, Name: pod.Name},
			Metric:          custom_metrics.MetricIdentifier{Name: waiting},
			Timestamp:       metav1.Now(),
			Value:           *resource.NewMilliQuantity(int64(value*1000), resource.DecimalSI),
		})
	}
	if len(found.Items) == 0 {
		return nil, provider.NewMetricNotFoundForSelectorError(info.GroupResource, info.Metric, "*", selector)
	}
	return found, nil
}

// GetMetricByName is not what an autoscaler of pods asks.
func (s *source) GetMetricByName(
	_ context.Context, name types.NamespacedName, info provider.CustomMetricInfo, _ labels.Selector,
) (*custom_metrics.MetricValue, error) {
	return nil, provider.NewMetricNotFoundForError(info.GroupResource, info.Metric, name.Name)
}

// target is the URL at which the pod is scraped; empty if no PodMonitoring selects it, or it does not run.
func target(pod corev1.Pod, monitorings []unstructured.Unstructured) string {
	if pod.Status.Phase != corev1.PodRunning || pod.Status.PodIP == "" {
		return ""
	}
	for _, each := range monitorings {
		wanted, _, _ := unstructured.NestedStringMap(each.Object, "spec", "selector", "matchLabels")
		if len(wanted) == 0 || !labels.SelectorFromSet(wanted).Matches(labels.Set(pod.Labels)) {
			continue
		}
		endpoints, _, _ := unstructured.NestedSlice(each.Object, "spec", "endpoints")
		for _, endpoint := range endpoints {
			fields, _ := endpoint.(map[string]any)
			name, _ := fields["port"].(string)
			path, _ := fields["path"].(string)
			if path == "" {
				path = "/metrics"
			}
			if number := portOf(pod, name); number != 0 {
				return "http://" + net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(int(number))) + path
			}
		}
	}
	return ""
}

func portOf(pod corev1.Pod, name string) int32 {
	for _, container := range pod.Spec.Containers {
		for _, port := range container.Ports {
			if port.Name == name {
				return port.ContainerPort
			}
		}
	}
	return 0
}

func (s *source) scrape(ctx context.Context, url string) (float64, error) {
	reply, err := s.ask(ctx, url)
	if err != nil {
		return 0, err
	}
	defer reply.Body.Close()
	lines, sum, known := bufio.NewScanner(reply.Body), 0.0, false
	for lines.Scan() {
		if match := sample.FindStringSubmatch(lines.Text()); match != nil {
			value, err := strconv.ParseFloat(match[1], 64)
			if err != nil {
				return 0, err
			}
			sum, known = sum+value, true
		}
	}
	if err := lines.Err(); err != nil || known {
		return sum, err
	}
	return 0, fmt.Errorf("%s has no vllm:num_requests_waiting", url)
}

func (s *source) get(ctx context.Context, url string, into any) error {
	reply, err := s.ask(ctx, url)
	if err != nil {
		return err
	}
	defer reply.Body.Close()
	return json.NewDecoder(reply.Body).Decode(into)
}

func (s *source) ask(ctx context.Context, url string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	reply, err := s.http.Do(request)
	if err != nil {
		return nil, err
	}
	if reply.StatusCode != http.StatusOK {
		reply.Body.Close()
		return nil, fmt.Errorf("%s answers %s", url, reply.Status)
	}
	return reply, nil
}
