//! The environment of a container, and the fields of the pod that it and `downwardAPI` files can have.

use super::quantity::Quantity;

/// An environment variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvVar {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: EnvValue,
}

/// The value of a variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EnvValue {
    /// A text; `$(NAME)` refers to an earlier variable.
    Text(String),
    /// A field of the pod. Never [`PodField::Labels`] or [`PodField::Annotations`].
    Field(PodField),
    /// A request or limit of a container.
    Resource(ResourceField),
    /// An entry of a `ConfigMap`.
    ConfigMapKey(KeyRef),
    /// An entry of a Secret.
    SecretKey(KeyRef),
}

/// Variables for all entries of an object: `envFrom`. Variables of `env` replace those of the same name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvFrom {
    /// Put before each key.
    pub prefix: String,
    /// The object.
    pub source: ObjectRef,
}

/// A kind of object of the pod's namespace, with data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ObjectKind {
    /// A `ConfigMap`.
    ConfigMap,
    /// A Secret.
    Secret,
}

/// An object of the pod's namespace.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectRef {
    /// What it is.
    pub kind: ObjectKind,
    /// Its name.
    pub name: String,
    /// The container is started without it, if it does not exist.
    pub optional: bool,
}

/// An entry of a `ConfigMap` or Secret of the pod's namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRef {
    /// The name of the object.
    pub name: String,
    /// The key of the entry.
    pub key: String,
    /// The variable is left out if the object or the entry does not exist.
    pub optional: bool,
}

/// A field of the pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodField {
    /// `metadata.name`
    Name,
    /// `metadata.namespace`
    Namespace,
    /// `metadata.uid`
    Uid,
    /// `metadata.labels['…']`; empty if there is none of that key.
    Label(String),
    /// `metadata.annotations['…']`; empty if there is none of that key.
    Annotation(String),
    /// `metadata.labels`: all, a line each, as `key="escaped value"`. Only in files.
    Labels,
    /// `metadata.annotations`: all, in the same way. Only in files.
    Annotations,
    /// `spec.nodeName`
    NodeName,
    /// `spec.serviceAccountName`
    ServiceAccountName,
    /// `status.hostIP`
    HostIp,
    /// `status.hostIPs`
    HostIps,
    /// `status.podIP`
    PodIp,
    /// `status.podIPs`
    PodIps,
}

/// A request or limit of a container of the pod, as a number: `resourceFieldRef`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceField {
    /// The container; for a variable, none is its own. A file always names one.
    pub container: Option<String>,
    /// Which of its requests and limits. A limit that is not set is what the node has; a request that is not set is 0.
    pub resource: ContainerResource,
    /// The number is the quantity divided by this, rounded up. Never 0.
    pub divisor: Quantity,
}

/// A request or limit.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum ContainerResource {
    CpuLimit,
    CpuRequest,
    MemoryLimit,
    MemoryRequest,
    EphemeralStorageLimit,
    EphemeralStorageRequest,
    /// Huge pages of this size, such as `2Mi`: request and limit are the same.
    HugePages(String),
}
