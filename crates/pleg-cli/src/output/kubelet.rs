//! Events as the kubelet's PLEG would send them, in the format of its log, so that the two can be compared.

use pleg::model::kubelet_events::KubeletEventType;
use pleg::{EventType, KubeletEvents, Source};
use serde::Serialize;

use crate::wire::{Event, Line};

/// One event, with the names of the kubelet's log.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct LogEvent<'a> {
    #[serde(rename = "ID")]
    id: &'a str,
    #[serde(rename = "Type")]
    kind: KubeletEventType,
    data: &'a str,
}

/// Translates a stream from its beginning: whether a removed sandbox also dies depends on its state before.
#[derive(Debug, Default)]
pub(crate) struct KubeletLines {
    projection: KubeletEvents,
}

impl KubeletLines {
    /// The kubelet's events for one of our lines: none, one or two. A gap stays a gap.
    pub(crate) fn lines(&mut self, line: String) -> serde_json::Result<Vec<String>> {
        let event = match serde_json::from_str(&line)? {
            Line::Event(event) => event,
            Line::Heartbeat(_) => return Ok(Vec::new()),
            Line::Gap(gap) => {
                if gap.is_restart() {
                    // Like a restarted kubelet, which has no earlier state.
                    self.projection = KubeletEvents::default();
                }
                return Ok(vec![line]);
            }
        };
        let Some(event) = event_of(&event) else {
            return Ok(Vec::new()); // Of a newer daemon; the kubelet has no word for it either.
        };
        let pod = event.pod.as_ref().map_or("", |pod| pod.uid.as_str());
        let projected = self.projection.project(&event);
        let said = projected.iter().map(|event| LogEvent {
            id: pod,
            kind: event.kind,
            data: if event.kind == KubeletEventType::PodSync {
                ""
            } else {
                &event.id
            },
        });
        said.map(|event| serde_json::to_string(&event)).collect()
    }
}

/// Converts from the wire format.
fn event_of(event: &Event) -> Option<pleg::Event> {
    Some(pleg::Event {
        seq: event.seq,
        instance: event.instance.unwrap_or_default(),
        time: event.time,
        kind: EventType::parse(&event.kind)?,
        pod: event.pod.clone(),
        subject: event.subject.clone(),
        pid: event.pid,
        exit_code: event.exit_code,
        reason: event.reason.as_deref().map(Into::into),
        initial: event.initial,
        source: Source::Relist,
        lag: None,
        trouble: None,
        lasted: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sandbox(seq: u64, state: &str) -> String {
        format!(
            r#"{{"seq":{seq},"time":"2026-11-16T00:00:00Z","type":"PodSandboxChanged","pod":{{"uid":"u","namespace":"n","name":"p"}},"subject":{{"kind":"sandbox","id":"s"{state}}},"initial":false,"source":"relist"}}"#
        )
    }

    #[test]
    fn a_stream_in_the_words_of_the_kubelet() {
        let mut kubelet = KubeletLines::default();
        let ready = kubelet.lines(sandbox(1, r#","state":"Ready""#)).unwrap();
        assert_eq!(ready, [r#"{"ID":"u","Type":"ContainerStarted","Data":"s"}"#]);
        let gone = kubelet.lines(sandbox(2, "")).unwrap();
        assert_eq!(
            gone,
            [
                r#"{"ID":"u","Type":"ContainerDied","Data":"s"}"#,
                r#"{"ID":"u","Type":"ContainerRemoved","Data":"s"}"#
            ]
        );
        let gap = r#"{"type":"Gap","from":3,"to":9}"#;
        assert_eq!(kubelet.lines(gap.to_owned()).unwrap(), [gap]);
    }

    #[test]
    fn after_a_restart_everything_is_new() {
        let mut kubelet = KubeletLines::default();
        let ready = || sandbox(1, r#","state":"Ready""#);
        assert_eq!(kubelet.lines(ready()).unwrap().len(), 1);
        assert_eq!(kubelet.lines(ready()).unwrap().len(), 0);
        let gap = r#"{"type":"Gap","from":1,"to":0,"instance":"000000000000000a","reason":"restarted","after":"000000000000000b-1"}"#;
        assert_eq!(kubelet.lines(gap.to_owned()).unwrap(), [gap]);
        assert_eq!(kubelet.lines(ready()).unwrap().len(), 1);
    }
}
