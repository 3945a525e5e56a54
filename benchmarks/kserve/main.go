// A batcher that works as KServe's does: kserve UPSTREAM MAX_BATCH_SIZE MAX_LATENCY_MS. It prints its port.
//
// Our own re-implementation of the algorithm, not KServe's code. Read in pkg/batcher/handler.go of github.com/kserve/kserve, as of
// commit bbccfb59f010. What is kept of it, because it decides what callers see:
//   - one goroutine collects and sends, so one request is with the server at a time, and no caller is collected meanwhile;
//   - it checks every 100 microseconds whether the batch is full or its first caller has waited long enough;
//   - callers are added whole, whatever their number of instances and whatever their path: the last path is used;
//   - any status but 200, a reply that cannot be parsed and a wrong number of predictions go to every caller of the batch as the
//     field "message" of a reply with status 200.
//
// What is left out: its log of each request, and everything around the handler (drainer, logger, probes).
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
)

const poll = 100 * time.Microsecond

type caller struct {
	path      string
	instances []any
	answer    chan reply
}

type reply struct {
	Message     string `json:"message"`
	BatchID     string `json:"batchId"`
	Predictions []any  `json:"predictions"`
}

type batcher struct {
	next      http.Handler
	most      int
	latency   time.Duration
	arrivals  chan caller
	batches   int
	instances []any
	callers   []caller
	since     time.Time
}

func (b *batcher) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !strings.HasSuffix(r.URL.Path, ":predict") {
		b.next.ServeHTTP(w, r)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, "cannot read the body", http.StatusBadRequest)
		return
	}
	var request struct {
		Instances []any `json:"instances"`
	}
	if err := json.Unmarshal(body, &request); err != nil || len(request.Instances) == 0 {
		http.Error(w, "no instances", http.StatusBadRequest)
		return
	}
	one := caller{r.URL.Path, request.Instances, make(chan reply)}
	b.arrivals <- one
	written, _ := json.Marshal(<-one.answer)
	_, _ = w.Write(written)
}

func (b *batcher) collect() {
	for {
		select {
		case one := <-b.arrivals:
			if len(b.instances) == 0 {
				b.since = time.Now()
			}
			b.instances = append(b.instances, one.instances...)
			b.callers = append(b.callers, one)
		case <-time.After(poll):
		}
		waited := time.Since(b.since).Milliseconds() >= b.latency.Milliseconds()
		if len(b.instances) >= b.most || (waited && len(b.instances) > 0) {
			b.send()
			b.instances, b.callers = nil, nil
		}
	}
}

func (b *batcher) send() {
	body, _ := json.Marshal(map[string]any{"instances": b.instances})
	path := b.callers[len(b.callers)-1].path
	recorder := httptest.NewRecorder()
	b.next.ServeHTTP(recorder, httptest.NewRequest(http.MethodPost, path, bytes.NewReader(body)))
	b.batches++
	id := strconv.Itoa(b.batches)
	if recorder.Code != http.StatusOK {
		b.tellAll(reply{Message: recorder.Body.String()})
		return
	}
	var answer struct {
		Predictions []any `json:"predictions"`
	}
	if err := json.Unmarshal(recorder.Body.Bytes(), &answer); err != nil {
		b.tellAll(reply{Message: err.Error(), BatchID: id})
		return
	}
	if len(answer.Predictions) != len(b.instances) {
		b.tellAll(reply{Message: "size of prediction is not equal to the size of instances", BatchID: id})
		return
	}
	first := 0
	for _, one := range b.callers {
		last := first + len(one.instances)
		one.answer <- reply{BatchID: id, Predictions: answer.Predictions[first:last]}
		first = last
	}
}

func (b *batcher) tellAll(same reply) {
	for _, one := range b.callers {
		one.answer <- same
	}
}

func main() {
	upstream, err := url.Parse(os.Args[1])
	if err != nil {
		panic(err)
	}
	most, _ := strconv.Atoi(os.Args[2])
	milliseconds, _ := strconv.Atoi(os.Args[3])
	proxy := httputil.NewSingleHostReverseProxy(upstream)
	proxy.Transport = &http.Transport{MaxIdleConns: 1000, MaxIdleConnsPerHost: 1000}
	b := &batcher{
		next:     proxy,
		most:     most,
		latency:  time.Duration(milliseconds) * time.Millisecond,
		arrivals: make(chan caller),
	}
	go b.collect()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	panic(http.Serve(listener, b))
}
