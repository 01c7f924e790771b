//! Where the news comes from: a daemon, or a generator in this process.
//!
//! Events say what changed; pods that changed are asked for again, a few by name, many by a list of all. What there is to tell goes through
//! a bounded channel: while nobody takes it, nothing more is asked.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::FutureExt as _;
use jiff::Timestamp;
use pleg::{Item, Overflow, PodRef, Start, Subscriber};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::input::{Link, Update};
use super::state::{Detail, POD_EVENTS, Row};
use crate::commands::pods::{Restarted, ask, can_ask, is_inspected, may_pass};
use crate::connect::{self, Observed, Pods};
use crate::filter::Filter;
use crate::http::follow::DaemonEvents;
use crate::local::Local;
use crate::since::Since;
use crate::wire::{self, Event, Line};

/// Past events that are asked for at the start.
const PAST: Duration = Duration::from_mins(10);
/// Changes are collected for so long before pods are asked for.
const ROUND: Duration = Duration::from_millis(200);
/// If more pods changed than this in a round, all are listed.
const ONE_BY_ONE: usize = 32;
/// Interval between lists at least; longer if a list takes long.
const LIST: Duration = Duration::from_secs(1);
/// A list may take one part of the time in so many.
const LIST_SHARE: u32 = 10;
/// Interval of health reports without an event.
const HEALTH: Duration = Duration::from_secs(2);
/// Events that are passed on together.
const BATCH: usize = 256;

pub(super) struct Source<'a> {
    observed: &'a Observed,
    events: Events<'a>,
    filter: Filter,
    updates: mpsc::Sender<Update>,
    /// The pod whose page is open.
    opened: watch::Receiver<Option<PodRef>>,
    /// Pods that changed since they were last asked for, by UID.
    changed: HashMap<String, PodRef>,
    /// When they are asked for.
    round: Option<Instant>,
    /// All pods have to be listed.
    list_due: bool,
    /// Not before this.
    next_list: Instant,
    /// Pods of `pleg node` change without events.
    is_node: bool,
    restarted: Restarted,
    next_health: Instant,
    /// The events of this pod were asked for.
    told: Option<PodRef>,
}

impl<'a> Source<'a> {
    /// Connects to the events; what is new from then on will be told.
    pub(super) async fn start(
        observed: &'a Observed,
        filter: Filter,
        updates: mpsc::Sender<Update>,
        opened: watch::Receiver<Option<PodRef>>,
    ) -> anyhow::Result<Self> {
        let now = Instant::now();
        Ok(Self {
            events: Events::start(observed, &filter).await?,
            observed,
            filter,
            updates,
            opened,
            changed: HashMap::new(),
            round: None,
            list_due: true,
            next_list: now,
            is_node: false,
            restarted: Restarted::default(),
            next_health: now,
            told: None,
        })
    }

    /// Tells what is new, until an error that will not pass.
    pub(super) async fn run(mut self) -> anyhow::Result<()> {
        loop {
            let due = self.due();
            // Events without end must not keep it from asking, nor questions from reading events.
            let news = if due <= Instant::now() {
                None
            } else {
                tokio::select! {
                    biased;
                    lines = self.events.next() => Some(lines?),
                    changed = self.opened.changed() => {
                        // Nobody listens any more.
                        if changed.is_err() {
                            return Ok(());
                        }
                        self.told = None;
                        None
                    }
                    () = tokio::time::sleep_until(due) => None,
                }
            };
            let done = match news {
                Some(Ok(lines)) => self.take(lines).await,
                Some(Err(why)) => Err(Trouble::Lost(why)),
                None => self.ask().await,
            };
            match done {
                Ok(()) => {}
                Err(Trouble::Lost(why)) => self.reconnect(why).await?,
                Err(Trouble::Fatal(error)) => return Err(error),
                Err(Trouble::Closed) => return Ok(()),
            }
        }
    }

    /// When something is due without an event.
    fn due(&self) -> Instant {
        let list = (self.list_due || self.is_node).then_some(self.next_list);
        let times = [Some(self.next_health), self.round, list];
        times.into_iter().flatten().min().unwrap_or(self.next_health)
    }

    async fn tell(&self, update: Update) -> Result<(), Trouble> {
        self.updates.send(update).await.map_err(|_| Trouble::Closed)
    }

    /// Notes which pods changed, and passes the events on.
    async fn take(&mut self, lines: Vec<Line>) -> Result<(), Trouble> {
        for line in &lines {
            match line {
                Line::Gap(_) => self.list_due = true,
                Line::Heartbeat(_) => {}
                Line::Event(event) => {
                    match &event.pod {
                        // There is one of these for every pod.
                        Some(_) if event.initial => self.list_due = true,
                        Some(pod) => drop(self.changed.insert(pod.uid.to_string(), pod.clone())),
                        None => {}
                    }
                    if event.trouble.is_some() || event.kind.starts_with("Pleg") {
                        self.next_health = Instant::now();
                    }
                }
            }
        }
        if self.changed.len() > ONE_BY_ONE || self.changed.values().any(|pod| !can_ask(pod)) {
            self.changed.clear();
            self.list_due = true;
        }
        if !self.changed.is_empty() {
            self.round.get_or_insert_with(|| Instant::now() + ROUND);
        }
        self.tell(Update::Events(lines)).await
    }

    /// Asks for everything that is due.
    async fn ask(&mut self) -> Result<(), Trouble> {
        let now = Instant::now();
        // A page that was closed and opened again has forgotten what it was told.
        if self.opened.has_changed().unwrap_or_default() {
            self.told = None;
        }
        let opened = self.opened.borrow_and_update().clone();
        let list = (self.list_due || self.is_node) && self.next_list <= now;
        // If all are listed, nothing says which changed.
        let opened_changed = opened
            .as_ref()
            .is_some_and(|pod| list || self.told.as_ref() != Some(pod) || self.changed.contains_key(pod.uid.as_str()));
        if self.round.is_some_and(|round| round <= now) {
            self.round = None;
            for (_, pod) in std::mem::take(&mut self.changed) {
                self.one(&pod).await?;
            }
        }
        if list {
            self.all().await?;
        }
        if let Some(pod) = opened.filter(|_| opened_changed) {
            self.detail(pod).await?;
        }
        if self.next_health <= Instant::now() {
            let report = self
                .observed
                .known_health()
                .await
                .map_err(|error| self.trouble(error))?;
            self.next_health = Instant::now() + HEALTH;
            self.tell(Update::Health(Box::new(report))).await?;
        }
        Ok(())
    }

    /// One pod, as it is now.
    async fn one(&mut self, pod: &PodRef) -> Result<(), Trouble> {
        let pods = ask(self.observed, pod).await.map_err(|error| self.trouble(error))?;
        let rows = self.rows(&pods);
        let mut gone = Vec::new();
        // What a node has is not decided by its runtime: the next list tells.
        if !matches!(pods, Pods::Node(_)) && !rows.iter().any(|row| *row.uid == *pod.uid.as_str()) {
            gone.push(pod.uid.to_string());
        }
        self.tell(Update::Changed { rows, gone }).await
    }

    /// Those that are shown.
    fn rows(&self, pods: &Pods) -> Vec<Row> {
        rows(pods, self.filter.namespace.as_deref())
    }

    /// All pods.
    async fn all(&mut self) -> Result<(), Trouble> {
        let began = Instant::now();
        let relisted = self.restarted.has_relisted(self.observed).await;
        let listed = match relisted {
            Ok(true) => self.list().await,
            Ok(false) => Ok(None),
            Err(error) => Err(error),
        };
        let listed = listed.map_err(|error| self.trouble(error))?;
        self.next_list = Instant::now() + LIST.max(began.elapsed() * LIST_SHARE);
        let Some((rows, inspected, is_node)) = listed else {
            return Ok(());
        };
        if !self.restarted.is_settled(inspected) {
            return Ok(());
        }
        (self.list_due, self.is_node) = (false, is_node);
        self.tell(Update::Pods(rows)).await
    }

    /// The rows of all pods, whether all are inspected, and whether they are a node's; none before the first relist. Thousands of pods are
    /// read in another thread.
    async fn list(&self) -> anyhow::Result<Option<(Vec<Row>, bool, bool)>> {
        let namespace = self.filter.namespace.clone();
        let summary = move |pods: &Pods| {
            let is_node = matches!(pods, Pods::Node(_));
            (rows(pods, namespace.as_deref()), is_inspected(pods), is_node)
        };
        match self.observed {
            Observed::Daemon(daemon) => {
                let read = connect::all_of_daemon(daemon, move |pods| summary(&pods));
                read.await.map(Some)
            }
            Observed::Runtime(local) => {
                if local.pleg.cache().complete().number() == 0 {
                    return Ok(None);
                }
                let pleg = local.pleg.clone();
                let read = move || {
                    let entries = pleg.cache().entries();
                    let pods = connect::read_entries(&pleg, &entries)?;
                    Ok(summary(&Pods::Runtime(pods)))
                };
                tokio::task::spawn_blocking(read).await?.map(Some)
            }
        }
    }

    /// What the page of a pod shows.
    async fn detail(&mut self, pod: PodRef) -> Result<(), Trouble> {
        let first = self.told.as_ref() != Some(&pod);
        let detail = detail(self.observed, &pod, first).await;
        let detail = detail.map_err(|error| self.trouble(error))?;
        self.told = Some(pod);
        self.tell(Update::Detail(Box::new(detail))).await
    }

    /// What an error of a question means: a daemon that is gone may come back.
    fn trouble(&self, error: anyhow::Error) -> Trouble {
        if matches!(self.observed, Observed::Daemon(_)) && may_pass(&error) {
            Trouble::Lost(format!("{error:#}"))
        } else {
            Trouble::Fatal(error)
        }
    }

    async fn reconnect(&mut self, why: String) -> anyhow::Result<()> {
        let lost = Link::Lost {
            since: Timestamp::now(),
            why,
        };
        let _ = self.updates.send(Update::Link(lost)).await;
        if let Events::Daemon(events) = &mut self.events {
            events.reconnect_silently().await?;
        }
        self.restarted.reconnected();
        self.changed.clear();
        (self.round, self.list_due, self.told) = (None, true, None);
        (self.next_list, self.next_health) = (Instant::now(), Instant::now());
        let _ = self.updates.send(Update::Link(Link::Connected)).await;
        Ok(())
    }
}

/// Why something was not told.
enum Trouble {
    /// The daemon is gone.
    Lost(String),
    Fatal(anyhow::Error),
    /// Nobody listens any more.
    Closed,
}

fn rows(pods: &Pods, namespace: Option<&str>) -> Vec<Row> {
    let mut rows = Row::all(pods);
    rows.retain(|row| namespace.is_none_or(|namespace| *row.namespace == *namespace));
    rows
}

/// A pod of the runtime, also if the daemon is a node; the first time with its held events.
async fn detail(observed: &Observed, named: &PodRef, first: bool) -> anyhow::Result<Detail> {
    let is_it = |pod: &wire::Pod| pod.pod.uid == named.uid;
    let uid = named.uid.to_string();
    match observed {
        Observed::Daemon(_) if !can_ask(named) => Ok(Detail {
            uid,
            pod: None,
            events: None,
        }),
        Observed::Daemon(daemon) => {
            let query = [("pod", format!("{}/{}", named.namespace, named.name))];
            let pods: Vec<wire::Pod> = daemon.query_json("/api/v1/runtime/pods", &query).await?;
            let events = if first {
                let text = daemon.query_text("/api/v1/events", &query).await?;
                let lines = text.lines().rev().filter_map(|line| serde_json::from_str(line).ok());
                Some(newest(lines, named))
            } else {
                None
            };
            Ok(Detail {
                uid,
                pod: pods.into_iter().find(is_it),
                events,
            })
        }
        Observed::Runtime(local) => {
            let entry: Vec<_> = local.pleg.cache().get(&named.uid).into_iter().collect();
            let pods = connect::read(local, &entry)?;
            Ok(Detail {
                uid,
                pod: pods.into_iter().find(is_it),
                events: first.then(|| newest(held(local).into_iter().rev(), named)),
            })
        }
    }
}

/// The newest events of a pod, of lines whose newest is the first; the oldest first.
fn newest(lines: impl Iterator<Item = Line>, named: &PodRef) -> Vec<Event> {
    let of_pod = lines.filter_map(|line| match line {
        Line::Event(event) => Some(*event).filter(|event| event.pod.as_ref().is_some_and(|pod| pod.uid == named.uid)),
        Line::Gap(_) | Line::Heartbeat(_) => None,
    });
    let mut events: Vec<Event> = of_pod.take(POD_EVENTS).collect();
    events.reverse();
    events
}

/// What the feed of this process holds.
fn held(local: &Local) -> Vec<Line> {
    let mut subscriber = local.pleg.subscribe(Start::Oldest, Overflow::Gap);
    std::iter::from_fn(|| subscriber.try_next())
        .filter_map(|item| line(&item))
        .collect()
}

/// An item of a feed, as a daemon would send it.
fn line(item: &Item) -> Option<Line> {
    let text = match item {
        Item::Event(event) => serde_json::to_string(&**event),
        Item::Gap(gap) => serde_json::to_string(gap),
    };
    serde_json::from_str(&text.ok()?).ok()
}

/// Events as they come.
enum Events<'a> {
    Daemon(Box<DaemonEvents<'a>>),
    Local {
        subscriber: Box<Subscriber>,
        filter: Filter,
        local: &'a Local,
    },
}

impl<'a> Events<'a> {
    async fn start(observed: &'a Observed, filter: &Filter) -> anyhow::Result<Self> {
        Ok(match observed {
            Observed::Daemon(daemon) => {
                let since = Timestamp::now().checked_sub(PAST).map_or(Since::Now, Since::Time);
                let events = DaemonEvents::start(daemon, filter.query(), since).await?;
                Self::Daemon(Box::new(events))
            }
            Observed::Runtime(local) => Self::Local {
                subscriber: Box::new(local.pleg.subscribe(Start::Oldest, Overflow::Gap)),
                filter: filter.clone(),
                local,
            },
        })
    }

    /// The next events, at least one; or why there are none, if the daemon is gone. Cancel-safe.
    async fn next(&mut self) -> anyhow::Result<Result<Vec<Line>, String>> {
        match self {
            Self::Daemon(events) => {
                let mut lines = match events.read().await? {
                    Ok((_, first)) => vec![first],
                    Err(why) => return Ok(Err(why)),
                };
                // With what has come in the meantime. If the daemon is gone, it is so the next time too.
                while lines.len() < BATCH
                    && let Some(read) = events.read().now_or_never()
                    && let Ok((_, line)) = read?
                {
                    lines.push(line);
                }
                Ok(Ok(lines))
            }
            Self::Local {
                subscriber,
                filter,
                local,
            } => {
                let Some(first) = subscriber.next().await else {
                    anyhow::bail!(
                        "the generator of this command ended: {}",
                        local.pleg.health().report().short()
                    )
                };
                let rest = std::iter::from_fn(|| subscriber.try_next()).take(BATCH);
                let admitted = |item: &Item| match item {
                    Item::Event(event) => filter.matches(event),
                    Item::Gap(_) => true,
                };
                let lines = std::iter::once(first).chain(rest).filter(admitted);
                Ok(Ok(lines.filter_map(|item| line(&item)).collect()))
            }
        }
    }
}
