package main

import (
	"context"
	"os"
	"time"

	cadvisorapi "github.com/google/cadvisor/info/v1"
	"go.opentelemetry.io/otel/trace/noop"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/flowcontrol"
	internalapi "k8s.io/cri-api/pkg/apis"
	remote "k8s.io/cri-client/pkg"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/pkg/kubelet/cm"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	"k8s.io/kubernetes/pkg/kubelet/kuberuntime"
	"k8s.io/kubernetes/pkg/kubelet/logs"
	proberesults "k8s.io/kubernetes/pkg/kubelet/prober/results"
	"k8s.io/utils/ptr"
)

// What a kubelet has unless it is told otherwise: pkg/kubelet/kubelet.go, and the defaults of its configuration.
const (
	requestTimeout    = 2 * time.Minute
	relistPeriod      = time.Second
	relistThreshold   = 3 * time.Minute
	channelCapacity   = 1000
	maxStreamRetries  = 5
	maxPods           = 110
	imagePullQPS      = 5
	imagePullBurst    = 10
	cpuCFSQuotaPeriod = 100 * time.Millisecond
)

// newRuntime makes the real client and the real kuberuntime manager, as the kubelet does.
//
// The PLEG uses GetPods, GetPod and GetPodStatus of it, which use the runtime service and the actuated state. The rest is for starting
// and stopping containers and for images: there the real types stand where they can be had without a kubelet, stubs of the kubelet's own
// for the container and the log manager, and nil for the helper, the providers of pod states and the recorders of times.
func newRuntime(ctx context.Context, endpoint, rootDirectory string) (kuberuntime.KubeGenericRuntime, internalapi.RuntimeService, error) {
	tracer := noop.NewTracerProvider()
	streaming := utilfeature.DefaultFeatureGate.Enabled(features.CRIListStreaming)
	service, err := remote.NewRemoteRuntimeServiceBuilder().
		WithEndpoint(endpoint).
		WithConnectionTimeout(requestTimeout).
		WithTracerProvider(tracer).
		WithUseStreaming(streaming).
		Build(ctx)
	if err != nil {
		return nil, nil, err
	}
	images, err := remote.NewRemoteImageServiceBuilder().
		WithEndpoint(endpoint).
		WithConnectionTimeout(requestTimeout).
		WithTracerProvider(tracer).
		WithUseStreaming(streaming).
		Build(ctx)
	if err != nil {
		return nil, nil, err
	}
	runtime, _, err := kuberuntime.NewKubeGenericRuntimeManager(
		ctx,
		kubecontainer.FilterEventRecorder(&record.FakeRecorder{}),
		proberesults.NewManager(),
		proberesults.NewManager(),
		proberesults.NewManager(),
		rootDirectory,
		rootDirectory+"/logs",
		&cadvisorapi.MachineInfo{},
		nobodysPods{},
		maxPods,
		kubecontainer.RealOS{},
		nil, // runtimeHelper
		nil, // insecureContainerLifecycleHTTPClient
		flowcontrol.NewBackOff(10*time.Second, 300*time.Second),
		true, // serializeImagePulls
		ptr.To[int32](1),
		imagePullQPS,
		imagePullBurst,
		"NeverVerifyPreloadedImages",
		nil, // preloadedImagesCredentialVerificationWhitelist
		"",  // imageCredentialProviderConfigPath
		"",  // imageCredentialProviderBinDir
		ptr.To(false),
		true, // cpuCFSQuota
		metav1.Duration{Duration: cpuCFSQuotaPeriod},
		nil, // defaultPodSysctls
		service,
		images,
		cm.NewStubContainerManager(),
		logs.NewStubContainerLogManager(),
		nil,   // runtimeClassManager
		false, // seccompDefault
		"",    // memorySwapBehavior
		func() v1.ResourceList { return nil },
		ptr.To(0.9),
		"None",
		nil, // podPullingTimeRecorder
		tracer,
		nil, // tokenManager
		nil, // getServiceAccount
		nil, // podInitContainerTimeRecorder
	)
	return runtime, service, err
}

// nobodysPods answers for the pod workers, which only garbage collection and the start of containers ask.
type nobodysPods struct{}

func (nobodysPods) IsPodTerminationRequested(types.UID) bool { return false }
func (nobodysPods) ShouldPodContentBeRemoved(types.UID) bool { return false }
func (nobodysPods) ShouldPodRuntimeBeRemoved(types.UID) bool { return false }

// scratch makes the directory where the manager keeps its checkpoints.
func scratch() (string, error) {
	return os.MkdirTemp("", "pleg-bench-kubelet-")
}
