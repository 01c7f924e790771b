//! Events: what this node did, in `kubectl describe` and `kubectl get events`.
//!
//! In: events of `pleg-node` and of the other parts, through [`EventRecorder`], which never blocks. Out: `core/v1` Events at the API server,
//! counted up by patches. One task owns the writing; the recorder and the task share the state of all events, which is bounded. Nothing
//! depends on an event: those that cannot be written are dropped, and counted.
//!
//! | module | job |
//! |---|---|
//! | `recorder` | the handle, and the task that writes |
//! | `correlator` | which events are written: counts, combined events, limits per object: pure |
//! | `node` | events of the node itself, from its object: pure, and one task |
//! | `object` | events as objects of the API, and who records them: pure |
//! | `token_bucket`, `lru` | a rate limit and a bounded map: pure |

mod correlator;
mod lru;
mod node;
mod object;
mod recorder;
mod token_bucket;

pub(crate) use self::node::follow_node;
pub(crate) use self::object::Component;
pub use self::recorder::EventRecorder;
