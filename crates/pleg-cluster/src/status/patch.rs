//! The difference between two statuses, as a strategic merge patch. Pure.
//!
//! Only what differs is sent, so that nothing is overwritten that changed meanwhile. Conditions are merged by their type, addresses by the
//! address, so the latter are replaced as a whole; other lists are always replaced. The UID is a precondition: a pod of the same name that
//! came later is not touched.

use k8s_openapi::api::core::v1 as core;
use pleg::PodUid;
use serde_json::{Map, Value, json};

use super::merge::{is_foreign, is_transient};

/// The patch that makes `old` `new`. None if they are the same to a reader.
pub(crate) fn patch(uid: &PodUid, old: &core::PodStatus, new: &core::PodStatus) -> Option<Value> {
    let (old_fields, new_fields) = (fields(old)?, fields(new)?);
    // Nothing is left out of what is sent.
    let whole = serde_json::to_value(new).ok()?;
    let mut status = Map::new();
    for (key, value) in &new_fields {
        if old_fields.get(key) == Some(value) {
            continue;
        }
        let value = match key.as_str() {
            "conditions" => continue,
            "podIPs" | "hostIPs" => replacing(value),
            key => whole[key].clone(),
        };
        status.insert(key.clone(), value);
    }
    for key in old_fields.keys() {
        if key != "conditions" && !new_fields.contains_key(key) {
            status.insert(key.clone(), Value::Null);
        }
    }
    let conditions = conditions(old, new);
    if !conditions.is_empty() {
        status.insert("conditions".to_owned(), conditions.into());
    }
    if status.is_empty() {
        return None;
    }
    Some(json!({"metadata": {"uid": uid.as_str()}, "status": status}))
}

/// Our conditions that differ, or are gone.
fn conditions(old: &core::PodStatus, new: &core::PodStatus) -> Vec<Value> {
    let old: Vec<Value> = old.conditions.iter().flatten().filter_map(pruned_value).collect();
    let own = new
        .conditions
        .iter()
        .flatten()
        .filter(|condition| !is_foreign(condition));
    let own = own.filter_map(|condition| {
        let value = pruned_value(condition)?;
        let kind = &value["type"];
        let before = old.iter().find(|before| before["type"] == *kind);
        if before == Some(&value) {
            return None;
        }
        Some(with_nulls(value, before))
    });
    let is_gone = |before: &&Value| {
        let kind = before["type"].as_str().unwrap_or_default();
        let mut new = new.conditions.iter().flatten();
        is_transient(kind) && !new.any(|condition| condition.type_ == kind)
    };
    // A merge leaves what is not named.
    let gone = old.iter().filter(is_gone);
    let gone = gone.map(|before| json!({"$patch": "delete", "type": before["type"]}));
    own.chain(gone).collect()
}

/// A merge leaves keys that are not named: those that are gone have to be named.
fn with_nulls(mut value: Value, before: Option<&Value>) -> Value {
    let gone = before.and_then(Value::as_object).into_iter().flatten();
    if let Some(fields) = value.as_object_mut() {
        for (key, _) in gone {
            fields.entry(key.clone()).or_insert(Value::Null);
        }
    }
    value
}

/// A list that replaces what is there.
fn replacing(list: &Value) -> Value {
    let items = list.as_array().into_iter().flatten().cloned();
    let directive = std::iter::once(json!({"$patch": "replace"}));
    Value::Array(directive.chain(items).collect())
}

fn fields(status: &core::PodStatus) -> Option<Map<String, Value>> {
    match pruned_value(status)? {
        Value::Object(fields) => Some(fields),
        _ => Some(Map::new()),
    }
}

/// As JSON, without what means nothing: nulls, and empty objects and lists.
fn pruned_value(of: &impl serde::Serialize) -> Option<Value> {
    let mut value = serde_json::to_value(of).ok()?;
    prune(&mut value);
    Some(value)
}

fn prune(value: &mut Value) {
    let is_empty = |value: &Value| match value {
        Value::Null => true,
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    };
    match value {
        Value::Object(fields) => {
            fields.values_mut().for_each(prune);
            fields.retain(|_, value| !is_empty(value));
        }
        Value::Array(items) => items.iter_mut().for_each(prune),
        _ => {}
    }
}

#[cfg(test)]
mod tests;
