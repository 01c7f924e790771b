//! `pleg pods -w`: a row for each pod that changes or goes. Events say which pod to ask for again.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use jiff::Timestamp;
use pleg::{Item, Overflow, PodRef, Start, Subscriber};
use tokio::time::MissedTickBehavior;

use super::again::{Restarted, ask, can_ask, may_pass};
use super::choose::{choose, is_named};
use super::row::Row;
use super::{names, style};
use crate::args::{Global, ListFormat, Pods};
use crate::connect::{self, Observed, Stay};
use crate::http::follow::DaemonEvents;
use crate::local::Local;
use crate::output;
use crate::output::pod::Style;
use crate::since::Since;
use crate::wire::Line;
use crate::{node_pod, wire};

/// How often all pods are listed while that is needed.
const LIST: Duration = Duration::from_secs(1);

pub(super) async fn follow(global: &Global, args: &Pods) -> anyhow::Result<()> {
    let observed = Observed::find(global, &args.observe, Stay::Long).await?;
    // First the events, then the pods, so that nothing falls between them.
    let changes = Changes::start(&observed).await?;
    match list(&observed, args).await? {
        connect::Pods::Runtime(pods) => Watch::<wire::Pod>::new(&observed, args).run(changes, pods).await,
        connect::Pods::Node(pods) => Watch::<node_pod::Pod>::new(&observed, args).run(changes, pods).await,
    }
}

/// The pods whose names are asked for.
async fn list(observed: &Observed, args: &Pods) -> anyhow::Result<connect::Pods> {
    observed
        .pods(|namespace, name, _| is_named(args, namespace, name))
        .await
}

/// What is printed, and what is due.
struct Watch<'a, P> {
    observed: &'a Observed,
    args: &'a Pods,
    printed: HashMap<String, Printed<P>>,
    widths: Vec<usize>,
    /// Something was missed, so that all pods have to be listed.
    list_due: bool,
    restarted: Restarted,
}

/// A pod's row comes again only if it says something new.
struct Printed<P> {
    said: String,
    pod: P,
    /// Lists in a row that did not have it.
    missing: u32,
}

impl<'a, P: Row> Watch<'a, P> {
    fn new(observed: &'a Observed, args: &'a Pods) -> Self {
        Self {
            observed,
            args,
            printed: HashMap::new(),
            widths: Vec::new(),
            list_due: false,
            restarted: Restarted::default(),
        }
    }

    async fn run(mut self, mut changes: Changes<'_>, mut first: Vec<P>) -> anyhow::Result<()> {
        choose(&mut first, self.args);
        for pod in &first {
            self.is_news(pod);
        }
        let text = self.render(&first, style(self.args));
        let below = if self.is_table() {
            P::below(&first, Timestamp::now())
        } else {
            String::new()
        };
        output::print(&(text + &below))?;
        let mut tick = tokio::time::interval(LIST);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let due = tokio::select! {
                change = changes.next() => match change? {
                    // A list that is due says this too.
                    Change::One(pod) if self.list_due || !is_named(self.args, &pod.namespace, &pod.name) => continue,
                    Change::One(pod) if can_ask(&pod) => Some(pod),
                    Change::One(_) | Change::Many => {
                        self.list_due = true;
                        continue;
                    }
                    Change::Lost(why) => {
                        self.reconnect(&mut changes, &why).await?;
                        continue;
                    }
                },
                _ = tick.tick(), if self.list_due || P::CHANGES_WITHOUT_EVENTS => None,
            };
            let answer = match &due {
                Some(pod) => ask(self.observed, pod).await.map(Some),
                None => self.list().await,
            };
            match (answer, due) {
                (Ok(None), _) => {}
                (Ok(Some(pods)), Some(pod)) => self.one(&pod, P::of(pods)?)?,
                (Ok(Some(pods)), None) => self.all(P::of(pods)?)?,
                (Err(error), _) if matches!(self.observed, Observed::Daemon(_)) && may_pass(&error) => {
                    self.reconnect(&mut changes, &format!("{error:#}")).await?;
                }
                (Err(error), _) => return Err(error),
            }
        }
    }

    async fn reconnect(&mut self, changes: &mut Changes<'_>, why: &str) -> anyhow::Result<()> {
        if let Changes::Daemon(events) = changes {
            events.reconnect(why).await?;
        }
        self.list_due = true;
        self.restarted.reconnected();
        Ok(())
    }

    /// All pods; none if a daemon that has just started does not know them yet.
    async fn list(&mut self) -> anyhow::Result<Option<connect::Pods>> {
        if !self.restarted.has_relisted(self.observed).await? {
            return Ok(None);
        }
        let pods = list(self.observed, self.args).await?;
        Ok(self.restarted.is_whole(&pods).then_some(pods))
    }

    /// Prints what is new of one pod, if the daemon or runtime has it.
    fn one(&mut self, pod: &PodRef, found: Vec<P>) -> anyhow::Result<()> {
        let gone = !P::CHANGES_WITHOUT_EVENTS && !found.iter().any(|found| found.names()[2] == pod.uid.as_str());
        let gone = if gone {
            vec![pod.uid.as_str().to_owned()]
        } else {
            Vec::new()
        };
        self.print_news(found, &gone)
    }

    /// Prints what is new of all pods.
    fn all(&mut self, pods: Vec<P>) -> anyhow::Result<()> {
        self.list_due = false;
        let there: HashSet<&str> = pods.iter().map(|pod| pod.names()[2]).collect();
        let mut gone = Vec::new();
        for (uid, printed) in &mut self.printed {
            if there.contains(uid.as_str()) {
                printed.missing = 0;
                continue;
            }
            printed.missing += 1;
            if printed.missing >= P::LISTS_WITHOUT_IT {
                gone.push(uid.clone());
            }
        }
        self.print_news(pods, &gone)
    }

    /// Prints those of `pods` that say something new, and then the last rows of those that are gone.
    fn print_news(&mut self, mut pods: Vec<P>, gone: &[String]) -> anyhow::Result<()> {
        let all: Vec<String> = pods.iter().map(|pod| pod.names()[2].to_owned()).collect();
        choose(&mut pods, self.args);
        let chosen: HashSet<&str> = pods.iter().map(|pod| pod.names()[2]).collect();
        // A pod that is not asked for any more has no last row, and is new when it is asked for again.
        for uid in all.iter().filter(|uid| !chosen.contains(uid.as_str())) {
            self.printed.remove(uid);
        }
        let mut rows: Vec<P> = pods.iter().filter(|pod| self.is_news(pod)).cloned().collect();
        let gone = gone.iter().filter_map(|uid| self.printed.remove(uid));
        let mut gone: Vec<P> = gone.map(|printed| printed.pod.removed()).collect();
        gone.sort_by(|a, b| a.names().cmp(&b.names()));
        rows.extend(gone);
        let text = self.render(
            &rows,
            Style {
                no_headers: true,
                ..style(self.args)
            },
        );
        output::print(&text)
    }

    fn is_news(&mut self, pod: &P) -> bool {
        let [.., uid] = pod.names();
        let said = match self.args.output {
            ListFormat::Json => pod.said(),
            _ => format!("{} {} {}", pod.state(), pod.restarts(), pod.ready()),
        };
        let printed = Printed {
            said: said.clone(),
            pod: pod.clone(),
            missing: 0,
        };
        self.printed
            .insert(uid.to_owned(), printed)
            .is_none_or(|before| before.said != said)
    }

    fn is_table(&self) -> bool {
        matches!(self.args.output, ListFormat::Table | ListFormat::Wide)
    }

    fn render(&mut self, pods: &[P], style: Style) -> String {
        match self.args.output {
            ListFormat::Json => pods.iter().map(|pod| pod.json() + "\n").collect(),
            ListFormat::Name => names(pods),
            _ => P::rows(pods, self.args, style, Timestamp::now()).render_under(&mut self.widths),
        }
    }
}

/// Which pods change.
enum Changes<'a> {
    Daemon(Box<DaemonEvents<'a>>),
    Local {
        subscriber: Box<Subscriber>,
        local: &'a Local,
    },
}

enum Change {
    One(PodRef),
    /// More than is worth asking for one by one, or nothing is known.
    Many,
    /// The daemon is gone, and why this is known.
    Lost(String),
}

impl<'a> Changes<'a> {
    async fn start(observed: &'a Observed) -> anyhow::Result<Self> {
        Ok(match observed {
            Observed::Daemon(daemon) => {
                let events = DaemonEvents::start(daemon, Vec::new(), Since::Now).await?;
                Self::Daemon(Box::new(events))
            }
            Observed::Runtime(local) => Self::Local {
                subscriber: Box::new(local.pleg.subscribe(Start::Now, Overflow::PodSync)),
                local,
            },
        })
    }

    /// Cancel-safe.
    async fn next(&mut self) -> anyhow::Result<Change> {
        loop {
            match self {
                Self::Daemon(events) => match events.read().await? {
                    Err(why) => return Ok(Change::Lost(why)),
                    Ok((_, Line::Event(event))) => match event.pod {
                        // A daemon that has just started has these of every pod.
                        Some(_) if event.initial => return Ok(Change::Many),
                        Some(pod) => return Ok(Change::One(pod)),
                        None => {}
                    },
                    Ok((_, Line::Gap(_))) => return Ok(Change::Many),
                    Ok((_, Line::Heartbeat(_))) => {}
                },
                Self::Local { subscriber, local } => match subscriber.next().await {
                    None => anyhow::bail!(
                        "the generator of this command ended: {}",
                        local.pleg.health().report().short()
                    ),
                    Some(Item::Event(event)) => {
                        if let Some(pod) = &event.pod {
                            return Ok(Change::One(pod.clone()));
                        }
                    }
                    Some(Item::Gap(_)) => return Ok(Change::Many),
                },
            }
        }
    }
}
