//! pleg against the real thing: containerd 1.6, 1.7 and 2.1, and CRI-O, each with a root, a state and a socket of its own.
//!
//! A simulated runtime does what its author believes; this crate finds out what real ones do. It holds the harness and, in
//! `tests/`, the scenarios. It must not hold anything the product needs, and it never touches a runtime of the host.
//!
//! | module | job |
//! |---|---|
//! | [`version`] | which runtimes there are, and where `containerd/fetch` and `crio/build` put them |
//! | [`runtime`] | one running runtime: start, stop, restart, kill, pause |
//! | [`cluster`] | a control plane: etcd, API server, controller manager, scheduler, kubectl |
//! | [`critools`] | crictl and critest, and what critest finds in the simulator |
//! | [`ginkgo`] | reports of ginkgo, and lists of what is to be expected of their specs |
//! | [`upstream`] | upstream's end-to-end tests: programs, images, what passes |
//! | [`home`] | its directory, and how everything that belongs to it is found and ended, whatever happened |
//! | [`process`] | processes as `/proc` shows them, signals |
//! | [`image`] | the test image, made without a registry |
//! | [`kubelet`] | pods and containers made as a kubelet makes them |
//! | [`lives`] | when each container ran, and that none ran twice at once |
//! | [`mod@truth`] | what the runtime itself reports, in a comparable form |
//! | [`checks`] | what scenarios of `pleg node` check beside its statuses |
//! | [`node`] | `pleg node` as a user runs it, with its manifests and the statuses it publishes |
//! | [`observer`] | a generator that observes one runtime, and what it reports |
//! | [`steps`] | act, and wait until the generator has reported it |
//! | [`wait`] | waiting for a level, with a deadline and a name |
//! | [`suite`] | scenarios times runtimes, as tests |

pub mod checks;
pub mod cluster;
pub mod critools;
pub mod ginkgo;
pub mod home;
pub mod image;
pub mod kubelet;
pub mod lives;
pub mod node;
pub mod observer;
pub mod process;
pub mod runtime;
pub mod steps;
pub mod suite;
pub mod truth;
pub mod upstream;
pub mod version;
pub mod wait;

pub use kubelet::{Container, Kubelet, Pod, Sandbox};
pub use lives::Lives;
pub use node::Node;
pub use observer::Observer;
pub use runtime::Runtime;
pub use suite::{Context, Scenario};
pub use truth::{Truth, truth};
pub use version::Version;
