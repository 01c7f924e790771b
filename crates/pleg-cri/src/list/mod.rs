//! The two lists, read frame by frame without building messages.
//!
//! A list carries every label and annotation of every container; a relist needs an id and a state. So the bytes of the body
//! are walked as they arrive (`read`), items are handed to a visitor that borrows from them (`wire`), and what is not
//! needed is skipped. Memory does not grow with the answer: only an item that straddles two frames is carried over.
//!
//! The streaming list calls repeat the same field 1 in several messages, so the same walk reads them.

mod read;
mod wire;

use std::collections::HashMap;

pub use read::BATCH;
pub(crate) use read::{Form, Visit, read_list};
pub use wire::{Malformed, glance_container, glance_sandbox, parse_container, parse_sandbox};

use crate::v1;

/// Label that carries a container's pod UID.
pub const POD_UID_LABEL: &str = "io.kubernetes.pod.uid";
/// Label that carries a container's pod name.
pub const POD_NAME_LABEL: &str = "io.kubernetes.pod.name";
/// Label that carries a container's pod namespace.
pub const POD_NAMESPACE_LABEL: &str = "io.kubernetes.pod.namespace";

/// One sandbox of a list, borrowed from the wire. Text is unchecked: it may be anything, also no UTF-8.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are CRI's own")]
pub struct SandboxItem<'a> {
    pub id: &'a [u8],
    /// `metadata` was there at all.
    pub has_metadata: bool,
    pub uid: &'a [u8],
    pub namespace: &'a [u8],
    pub name: &'a [u8],
    pub attempt: u32,
    /// The raw enum value: 0 is ready.
    pub state: i32,
    /// Nanoseconds, as the runtime says.
    pub created_at: i64,
    /// The label `io.kubernetes.pod.uid`.
    pub pod_uid_label: &'a [u8],
}

/// One container of a list, borrowed from the wire.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are CRI's own")]
pub struct ContainerItem<'a> {
    pub id: &'a [u8],
    pub pod_sandbox_id: &'a [u8],
    pub name: &'a [u8],
    pub attempt: u32,
    /// The raw enum value of `v1::ContainerState`.
    pub state: i32,
    /// Nanoseconds, as the runtime says.
    pub created_at: i64,
    pub pod_uid_label: &'a [u8],
    pub pod_name_label: &'a [u8],
    pub pod_namespace_label: &'a [u8],
}

/// What a finished list was.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ListSummary {
    /// Items handed to the visitor.
    pub items: usize,
    /// Bytes of all messages.
    pub bytes: usize,
    /// Came by the streaming call.
    pub streamed: bool,
}

/// Which objects a list should hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ListFilter {
    /// All of them.
    #[default]
    All,
    /// Those with the label `io.kubernetes.pod.uid` of this value.
    PodUid(String),
}

impl ListFilter {
    fn labels(&self) -> Option<HashMap<String, String>> {
        match self {
            Self::All => None,
            Self::PodUid(uid) => Some(HashMap::from([(POD_UID_LABEL.to_owned(), uid.clone())])),
        }
    }

    pub(crate) fn sandboxes(&self) -> v1::ListPodSandboxRequest {
        let filter = self.labels().map(|label_selector| v1::PodSandboxFilter {
            label_selector,
            ..Default::default()
        });
        v1::ListPodSandboxRequest { filter }
    }

    pub(crate) fn containers(&self) -> v1::ListContainersRequest {
        let filter = self.labels().map(|label_selector| v1::ContainerFilter {
            label_selector,
            ..Default::default()
        });
        v1::ListContainersRequest { filter }
    }
}
