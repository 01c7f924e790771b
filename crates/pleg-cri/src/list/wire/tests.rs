use std::collections::HashMap;

use proptest::prelude::*;
use prost::Message;

use super::super::{POD_NAME_LABEL, POD_NAMESPACE_LABEL, POD_UID_LABEL};
use super::*;
use crate::v1;

#[test]
fn the_labels_are_the_ones_we_name() {
    assert_eq!(POD_UID, POD_UID_LABEL.as_bytes());
    assert_eq!(POD_NAME, POD_NAME_LABEL.as_bytes());
    assert_eq!(POD_NAMESPACE, POD_NAMESPACE_LABEL.as_bytes());
}

fn labels() -> impl Strategy<Value = HashMap<String, String>> {
    let key = prop_oneof![
        Just(POD_UID_LABEL.to_owned()),
        Just(POD_NAME_LABEL.to_owned()),
        Just(POD_NAMESPACE_LABEL.to_owned()),
        ".{0,30}"
    ];
    proptest::collection::hash_map(key, ".{0,40}", 0..8)
}

prop_compose! {
    fn container()(id in ".{0,80}", sandbox in ".{0,80}", name in proptest::option::of((".{0,20}", any::<u32>())),
                   state in any::<i32>(), created_at in any::<i64>(), labels in labels(), annotations in labels(),
                   image in proptest::option::of(".{0,60}")) -> v1::Container {
        v1::Container {
            id, pod_sandbox_id: sandbox, state, created_at, labels, annotations,
            metadata: name.map(|(name, attempt)| v1::ContainerMetadata { name, attempt }),
            image: image.map(|image| v1::ImageSpec { image, ..Default::default() }),
            image_ref: "sha256:1".into(), image_id: "x".into(),
        }
    }
}

prop_compose! {
    fn sandbox()(id in ".{0,80}", meta in proptest::option::of((".{0,20}", ".{0,40}", ".{0,20}", any::<u32>())),
                 state in any::<i32>(), created_at in any::<i64>(), labels in labels(), annotations in labels()) -> v1::PodSandbox {
        v1::PodSandbox {
            id, state, created_at, labels, annotations, runtime_handler: "runc".into(),
            metadata: meta.map(|(name, uid, namespace, attempt)| v1::PodSandboxMetadata { name, uid, namespace, attempt }),
        }
    }
}

fn label<'a>(labels: &'a HashMap<String, String>, key: &str) -> &'a [u8] {
    labels.get(key).map_or(b"", |value| value.as_bytes())
}

fn same_container(message: &v1::Container, item: &ContainerItem<'_>) {
    let meta = message.metadata.clone().unwrap_or_default();
    assert_eq!(
        *item,
        ContainerItem {
            id: message.id.as_bytes(),
            pod_sandbox_id: message.pod_sandbox_id.as_bytes(),
            name: meta.name.as_bytes(),
            attempt: meta.attempt,
            state: message.state,
            created_at: message.created_at,
            pod_uid_label: label(&message.labels, POD_UID_LABEL),
            pod_name_label: label(&message.labels, POD_NAME_LABEL),
            pod_namespace_label: label(&message.labels, POD_NAMESPACE_LABEL),
        }
    );
}

fn same_sandbox(message: &v1::PodSandbox, item: &SandboxItem<'_>) {
    let meta = message.metadata.clone().unwrap_or_default();
    assert_eq!(
        *item,
        SandboxItem {
            id: message.id.as_bytes(),
            has_metadata: message.metadata.is_some(),
            uid: meta.uid.as_bytes(),
            namespace: meta.namespace.as_bytes(),
            name: meta.name.as_bytes(),
            attempt: meta.attempt,
            state: message.state,
            created_at: message.created_at,
            pod_uid_label: label(&message.labels, POD_UID_LABEL),
        }
    );
}

/// What we read of bytes that prost accepts. There are two kinds of bytes that prost accepts and we refuse: a map entry whose tag has
/// another wire type, and a group in place of an unknown field.
fn unless_refused<T>(item: Result<T, Malformed>) -> Option<T> {
    match item {
        Err(WRONG_TYPE | GROUP) => None,
        item => Some(item.unwrap()),
    }
}

proptest! {
    #[test]
    fn a_container_reads_as_prost_reads_it(message in container()) {
        same_container(&message, &parse_container(&message.encode_to_vec()).unwrap());
    }

    #[test]
    fn a_sandbox_reads_as_prost_reads_it(message in sandbox()) {
        same_sandbox(&message, &parse_sandbox(&message.encode_to_vec()).unwrap());
    }

    #[test]
    fn two_messages_in_a_row_merge_as_prost_merges_them(a in container(), b in container(), c in sandbox(), d in sandbox()) {
        let bytes = [a.encode_to_vec(), b.encode_to_vec()].concat();
        same_container(&v1::Container::decode(&*bytes).unwrap(), &parse_container(&bytes).unwrap());
        let bytes = [c.encode_to_vec(), d.encode_to_vec()].concat();
        same_sandbox(&v1::PodSandbox::decode(&*bytes).unwrap(), &parse_sandbox(&bytes).unwrap());
    }

    /// Bytes bent at random: what prost accepts, we read with the same content or refuse, by the rules of [`unless_refused`].
    #[test]
    fn bent_bytes_agree_with_prost(message in container(), other in sandbox(),
                                   bends in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        let mut bytes = message.encode_to_vec();
        for (at, byte) in &bends { if !bytes.is_empty() { let i = at.index(bytes.len()); bytes[i] = *byte; } }
        if let Ok(message) = v1::Container::decode(&*bytes) && let Some(item) = unless_refused(parse_container(&bytes)) { same_container(&message, &item); }
        let mut bytes = other.encode_to_vec();
        for (at, byte) in &bends { if !bytes.is_empty() { let i = at.index(bytes.len()); bytes[i] = *byte; } }
        if let Ok(message) = v1::PodSandbox::decode(&*bytes) && let Some(item) = unless_refused(parse_sandbox(&bytes)) { same_sandbox(&message, &item); }
    }

    /// What a glance tells is what the whole message says, wherever the whole message can be read.
    #[test]
    fn a_glance_tells_what_the_whole_says(a in container(), b in container(), c in sandbox(), d in sandbox(),
                                          bends in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4)) {
        let bent = |mut bytes: Vec<u8>| {
            for (at, byte) in &bends { if !bytes.is_empty() { let i = at.index(bytes.len()); bytes[i] = *byte; } }
            bytes
        };
        for bytes in [bent(a.encode_to_vec()), bent([a.encode_to_vec(), b.encode_to_vec()].concat())] {
            if let (Some(glance), Ok(whole)) = (glance_container(&bytes), parse_container(&bytes)) {
                prop_assert_eq!(glance, (whole.id, whole.state));
            }
        }
        for bytes in [bent(c.encode_to_vec()), bent([c.encode_to_vec(), d.encode_to_vec()].concat())] {
            if let (Some(glance), Ok(whole)) = (glance_sandbox(&bytes), parse_sandbox(&bytes)) {
                prop_assert_eq!(glance, (whole.id, whole.state));
            }
        }
        if bends.is_empty() {
            prop_assert!(glance_container(&a.encode_to_vec()).is_some(), "the usual is seen at a glance");
            prop_assert!(glance_sandbox(&c.encode_to_vec()).is_some(), "the usual is seen at a glance");
        }
    }

    #[test]
    fn noise_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse_container(&bytes);
        let _ = parse_sandbox(&bytes);
        let _ = glance_container(&bytes);
        let _ = glance_sandbox(&bytes);
    }
}

/// As prost does if the field is known, and unlike prost, which skips an unknown one.
#[test]
fn groups_are_refused() {
    const START: u8 = 3;
    const END: u8 = 4;
    let group = |number: u8| [number << 3 | START, number << 3 | END];
    for (number, prost_skips) in [(1, false), (8, false), (15, true)] {
        assert_eq!(
            v1::Container::decode(&group(number)[..]).is_ok(),
            prost_skips,
            "{number}"
        );
        assert_eq!(parse_container(&group(number)).unwrap_err(), GROUP, "{number}");
        assert_eq!(parse_sandbox(&group(number)).unwrap_err(), GROUP, "{number}");
        assert_eq!(glance_container(&group(number)), None, "{number}");
    }
    assert_eq!(parse_container(&[15 << 3 | END]).unwrap_err(), GROUP);
    // As deep as the message is long: nothing is read beyond the first tag.
    assert_eq!(parse_container(&vec![15 << 3 | START; 1 << 20]).unwrap_err(), GROUP);
    assert_eq!(
        parse_container(&[15 << 3 | 6]).unwrap_err(),
        Malformed("unknown wire type")
    );
}

#[test]
fn cut_off_anywhere_is_an_error_or_a_shorter_message() {
    let message = v1::Container {
        id: "abc".into(),
        state: 2,
        created_at: i64::MIN,
        ..Default::default()
    };
    let bytes = message.encode_to_vec();
    for end in 0..bytes.len() {
        assert_eq!(
            parse_container(&bytes[..end]).is_ok(),
            v1::Container::decode(&bytes[..end]).is_ok(),
            "{end}"
        );
    }
}
