package main

import (
	"encoding/json"
	"fmt"
	"syscall"
	"time"

	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/kubernetes/pkg/kubelet/pleg"
)

// numbers is what the process says about itself when asked.
type numbers struct {
	At int64 `json:"at"`
	// User and system time so far.
	CPUSeconds float64 `json:"cpu_seconds"`
	// The most memory that was resident.
	MaxRSSKiB int64 `json:"max_rss_kib"`
	// The kubelet's own metrics.
	Relists       uint64  `json:"relists"`
	RelistSeconds float64 `json:"relist_seconds"`
	Discarded     float64 `json:"discarded"`
	Healthy       bool    `json:"healthy"`
	Unhealthy     string  `json:"unhealthy,omitempty"`
}

func describe(generator pleg.PodLifecycleEventGenerator) []byte {
	now := numbers{At: time.Now().UnixNano()}
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err == nil {
		now.CPUSeconds = seconds(used.Utime) + seconds(used.Stime)
		now.MaxRSSKiB = used.Maxrss
	}
	healthy, err := generator.Healthy()
	now.Healthy = healthy
	if err != nil {
		now.Unhealthy = err.Error()
	}
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err == nil {
		for _, family := range families {
			for _, metric := range family.GetMetric() {
				switch family.GetName() {
				case "kubelet_pleg_relist_duration_seconds":
					now.Relists = metric.GetHistogram().GetSampleCount()
					now.RelistSeconds = metric.GetHistogram().GetSampleSum()
				case "kubelet_pleg_discard_events":
					now.Discarded = metric.GetCounter().GetValue()
				}
			}
		}
	}
	line, err := json.Marshal(map[string]numbers{"numbers": now})
	if err != nil {
		return fmt.Appendf(nil, `{"error":%q}`, err.Error())
	}
	return line
}

func seconds(time syscall.Timeval) float64 {
	return float64(time.Sec) + float64(time.Usec)/1e6
}
