//! Certificates: the first one by a bootstrap token, and new ones before they expire.
//!
//! In: the kubeconfig, a kubeconfig with a bootstrap token, and the directory of certificates. Out: certificate signing requests, files, and
//! clients that use them. Each kind of certificate has one task that owns its file; what the file contains is read again at every start, so
//! nothing else has to survive. A file that is missing, half written, expired or of somebody else leads to a new request, never to an error.
//!
//! | module | job |
//! |---|---|
//! | `client` | the client certificate: bootstrap and rotation, one task |
//! | `serving` | the certificate of the node's server, one task |
//! | `signing` | one request: submitted, waited for, with what to type meanwhile |
//! | `request` | what a request contains: pure |
//! | `pair` | a certificate with its key, checked: pure |
//! | `rotation` | when a certificate is replaced, and when a failure is tried again: pure |
//! | `kubeconfig` | the state of a kubeconfig, and the one that bootstrap writes |
//! | `store` | files: written atomically, for root only |

mod client;
mod kubeconfig;
mod pair;
mod request;
mod rotation;
mod serving;
mod signing;
mod store;

pub use self::client::{ClientCertificate, ClientCertificateConfig};
pub(crate) use self::kubeconfig::referenced_files;
pub use self::serving::SignedServingCertificate;
pub use rustls::server::ResolvesServerCert;
