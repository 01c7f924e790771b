//! `pleg pods -w`: a row for each pod that changes. Events say which pod to ask for again.

use std::collections::HashMap;

use jiff::Timestamp;
use pleg::{Item, Overflow, PodUid, Start, Subscriber};

use super::choose::{Choosable, choose, is_named};
use super::{find, names, print, style};
use crate::args::{Global, ListFormat, Pods};
use crate::connect::{self, Observed, Stay, read};
use crate::http::client::Lines;
use crate::output;
use crate::wire::{Line, PodRef};

pub(super) async fn follow(global: &Global, args: &Pods) -> anyhow::Result<()> {
    let observed = Observed::find(global, &args.observe, Stay::Long).await?;
    // First the events, then the pods, so that nothing falls between them.
    let mut changes = Changes::start(&observed).await?;
    let first = find(&observed, args).await?.chosen;
    let mut rows = Rows::default();
    rows.note(&first, args);
    print_first(&first, args, &mut rows)?;
    loop {
        let Some(pod) = changes.next().await? else {
            anyhow::bail!("the daemon stopped");
        };
        if !is_named(args, &pod.namespace, &pod.name) {
            continue;
        }
        let mut pods = ask(&observed, &pod).await?;
        match &mut pods {
            connect::Pods::Runtime(pods) => choose(pods, args),
            connect::Pods::Node(pods) => choose(pods, args),
        }
        if pods.len() == 0 {
            rows.printed.remove(&pod.uid);
        }
        rows.retain_changed(&mut pods, args);
        print_more(&pods, args, &mut rows)?;
    }
}

/// The pods of this name now.
async fn ask(observed: &Observed, pod: &PodRef) -> anyhow::Result<connect::Pods> {
    match observed {
        Observed::Daemon(daemon) => {
            let query = [("pod", format!("{}/{}", pod.namespace, pod.name))];
            connect::of_daemon(daemon, &query).await
        }
        Observed::Runtime(local) => {
            let entry = local.pleg.cache().get(&PodUid::from(pod.uid.as_str()));
            let entries: Vec<_> = entry.into_iter().collect();
            Ok(connect::Pods::Runtime(read(local, &entries)?))
        }
    }
}

/// Which pods change.
enum Changes {
    Daemon(Lines),
    Local(Subscriber),
}

impl Changes {
    async fn start(observed: &Observed) -> anyhow::Result<Self> {
        Ok(match observed {
            Observed::Daemon(daemon) => {
                let query = [("follow", "true".to_owned()), ("since", "now".to_owned())];
                Self::Daemon(daemon.lines("/api/v1/events", &query).await?)
            }
            Observed::Runtime(local) => Self::Local(local.pleg.subscribe(Start::Now, Overflow::PodSync)),
        })
    }

    async fn next(&mut self) -> anyhow::Result<Option<PodRef>> {
        loop {
            match self {
                Self::Daemon(lines) => {
                    let Some(line) = lines.next().await? else {
                        return Ok(None);
                    };
                    if let Ok(Line::Event(event)) = serde_json::from_str(&line)
                        && let Some(pod) = event.pod
                    {
                        return Ok(Some(pod));
                    }
                }
                Self::Local(subscriber) => match subscriber.next().await {
                    None => return Ok(None),
                    Some(Item::Event(event)) => {
                        if let Some(pod) = &event.pod {
                            return Ok(Some(PodRef {
                                uid: pod.uid.as_str().to_owned(),
                                namespace: pod.namespace.as_ref().to_owned(),
                                name: pod.name.as_ref().to_owned(),
                            }));
                        }
                    }
                    Some(Item::Gap(_)) => {}
                },
            }
        }
    }
}

/// What was printed: a pod's row comes again only if it says something new.
#[derive(Default)]
struct Rows {
    printed: HashMap<String, String>,
    widths: Vec<usize>,
}

impl Rows {
    fn note(&mut self, pods: &connect::Pods, args: &Pods) {
        match pods {
            connect::Pods::Runtime(pods) => pods.iter().for_each(|pod| _ = self.is_news(pod, args, said(pod))),
            connect::Pods::Node(pods) => pods
                .iter()
                .for_each(|pod| _ = self.is_news(pod, args, pod.raw.to_string())),
        }
    }

    fn retain_changed(&mut self, pods: &mut connect::Pods, args: &Pods) {
        match pods {
            connect::Pods::Runtime(pods) => pods.retain(|pod| self.is_news(pod, args, said(pod))),
            connect::Pods::Node(pods) => pods.retain(|pod| self.is_news(pod, args, pod.raw.to_string())),
        }
    }

    fn is_news<P: Choosable>(&mut self, pod: &P, args: &Pods, whole: String) -> bool {
        let [.., uid] = pod.names();
        let said = match args.output {
            ListFormat::Json => whole,
            _ => format!("{} {} {}", pod.state(), pod.restarts(), pod.ready()),
        };
        self.printed.insert(uid.to_owned(), said.clone()) != Some(said)
    }
}

/// What a pod says, but for when it was asked.
fn said(pod: &crate::wire::Pod) -> String {
    let pod = crate::wire::Pod {
        inspected_at: None,
        ..pod.clone()
    };
    serde_json::to_string(&pod).unwrap_or_default()
}

fn print_first(pods: &connect::Pods, args: &Pods, rows: &mut Rows) -> anyhow::Result<()> {
    match pods {
        _ if matches!(args.output, ListFormat::Json | ListFormat::Name) => print_more(pods, args, rows),
        connect::Pods::Runtime(pods) => {
            let now = Timestamp::now();
            let table = output::pod::rows(pods, style(args), now).render_under(&mut rows.widths);
            output::print(&(table + &output::pod::troubles(pods, now)))
        }
        connect::Pods::Node(_) => print(pods, args),
    }
}

fn print_more(pods: &connect::Pods, args: &Pods, rows: &mut Rows) -> anyhow::Result<()> {
    let now = Timestamp::now();
    let style = output::pod::Style {
        no_headers: true,
        ..style(args)
    };
    let text = match (pods, args.output) {
        (connect::Pods::Runtime(pods), ListFormat::Json) => {
            let lines: Result<Vec<_>, _> = pods.iter().map(serde_json::to_string).collect();
            lines_of(lines?)
        }
        (connect::Pods::Node(pods), ListFormat::Json) => lines_of(pods.iter().map(|pod| pod.raw.to_string())),
        (connect::Pods::Runtime(pods), ListFormat::Name) => names(pods),
        (connect::Pods::Node(pods), ListFormat::Name) => names(pods),
        (connect::Pods::Runtime(pods), _) => output::pod::rows(pods, style, now).render_under(&mut rows.widths),
        (connect::Pods::Node(pods), _) => output::kube::table(pods, args.namespace.is_none(), style, now),
    };
    output::print(&text)
}

fn lines_of(lines: impl IntoIterator<Item = String>) -> String {
    lines.into_iter().flat_map(|line| [line, "\n".to_owned()]).collect()
}
