// The kubelet's own PLEG as a program: its generator, its kuberuntime manager and its CRI client, with its defaults, against a socket.
//
// It prints one JSON object a line: events as they are taken from the channel, full relists as they end, and numbers about itself for
// every line on stdin. It ends when stdin does.
package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"sync"
	"time"

	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/kubernetes/pkg/features"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	"k8s.io/kubernetes/pkg/kubelet/metrics"
	"k8s.io/kubernetes/pkg/kubelet/pleg"
	"k8s.io/utils/clock"
)

func main() {
	endpoint := flag.String("endpoint", "", "the runtime's socket, as in unix:///run/containerd/containerd.sock")
	mode := flag.String("mode", "generic", "generic, or evented: with the feature gate EventedPLEG")
	stall := flag.Duration("stall", 0, "take no event from the channel for this long")
	version := flag.Bool("version", false, "say which Kubernetes this is, and end")
	flag.Parse()
	if *version {
		fmt.Println(release())
		return
	}
	if *endpoint == "" || flag.NArg() > 0 || (*mode != "generic" && *mode != "evented") {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(*endpoint, *mode == "evented", *stall); err != nil {
		fmt.Fprintln(os.Stderr, "kubelet:", err)
		os.Exit(1)
	}
}

func run(endpoint string, evented bool, stall time.Duration) error {
	if evented {
		if err := utilfeature.DefaultMutableFeatureGate.SetFromMap(map[string]bool{string(features.EventedPLEG): true}); err != nil {
			return err
		}
	}
	metrics.Register()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	root, err := scratch()
	if err != nil {
		return err
	}
	defer os.RemoveAll(root)
	runtime, service, err := newRuntime(ctx, endpoint, root)
	if err != nil {
		return err
	}

	out := &printer{out: bufio.NewWriterSize(os.Stdout, 1<<16)}
	channel := make(chan *pleg.PodLifecycleEvent, channelCapacity)
	durations := &pleg.RelistDuration{RelistPeriod: relistPeriod, RelistThreshold: relistThreshold}
	cache := &timedCache{Cache: kubecontainer.NewCache(), out: out}
	generator := pleg.NewGenericPLEG(runtime, channel, durations, cache, clock.RealClock{})
	generator.Start(ctx)
	if evented {
		pleg.NewEventedPLEG(service, generator, maxStreamRetries).Start(ctx)
	}
	go func() {
		time.Sleep(stall)
		read(generator.Watch(), out)
	}()

	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		out.line(true, "%s", describe(generator))
	}
	return lines.Err()
}

// read takes events as the kubelet's sync loop does, one after the other.
func read(events chan *pleg.PodLifecycleEvent, out *printer) {
	for event := range events {
		data, _ := event.Data.(string)
		// What the kubelet logs of an event; and lines go out together while there are more to come.
		out.line(len(events) == 0, `{"at":%d,"event":{"ID":%q,"Type":%q,"Data":%q}}`, time.Now().UnixNano(), event.ID, event.Type, data)
	}
}

// timedCache tells when a full relist has ended: then, and only then, is the time of the whole cache set, to that of the relist's begin.
type timedCache struct {
	kubecontainer.Cache
	out *printer
}

func (c *timedCache) UpdateTime(start time.Time) {
	c.Cache.UpdateTime(start)
	c.out.line(true, `{"at":%d,"relist_ms":%.4f}`, time.Now().UnixNano(), float64(time.Since(start))/1e6)
}

var _ kubecontainer.Cache = (*timedCache)(nil)

// printer writes whole lines of several goroutines.
type printer struct {
	mu  sync.Mutex
	out *bufio.Writer
}

func (p *printer) line(flush bool, format string, values ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.out, format+"\n", values...)
	if flush {
		p.out.Flush()
	}
}

func release() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, module := range info.Deps {
		if module.Path == "k8s.io/kubernetes" {
			return module.Version
		}
	}
	return "unknown"
}
