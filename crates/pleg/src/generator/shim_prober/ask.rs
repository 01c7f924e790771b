//! The calls of one probe, and what their answers say about the pod's shim and about one of its containers.
//!
//! No constant alone decides: an object that takes long is compared with what others answer at the same time, and asked again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{join, join_all};
use pleg_cri::{Error, Subject};
use tokio::time::{Instant, timeout};

use crate::model::status::ContainerStatus;
use crate::model::{ContainerRef, PodRef, SandboxId};
use crate::runtime::Runtime;
use crate::runtime::shim::Shim;

/// The kernel waits for a lock of a process before it shows its arguments, and a hung one may hold that.
const PROC_ANSWERS: Duration = Duration::from_secs(2);

/// What is probed.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) pod: PodRef,
    pub(super) sandbox: SandboxId,
    /// One of its containers; none if none is running, or if they are being inspected already.
    pub(super) container: Option<ContainerRef>,
    /// Containers of other pods, asked only to compare with.
    pub(super) witnesses: Vec<(PodRef, ContainerRef)>,
}

/// How to ask.
#[derive(Debug, Clone)]
pub(super) struct How {
    /// An object that takes longer than this is compared with others.
    pub(super) slow: Duration,
    /// Looks for the process of a shim that hangs.
    pub(super) search: bool,
    /// One call after the other, so that each is timed alone; true until something else is in flight beside it.
    pub(super) alone: Option<Arc<AtomicBool>>,
}

/// What a probe found out.
#[derive(Debug)]
pub(super) struct Answers {
    pub(super) shim: ShimVerdict,
    pub(super) container: ContainerVerdict,
    /// What a status call took, on average, that was answered at once and was alone all the while.
    pub(super) took: Option<Duration>,
}

/// What is known of a shim.
#[derive(Debug)]
pub(super) enum ShimVerdict {
    /// It answers.
    Lives,
    /// It does not, while the runtime does.
    Hangs {
        /// What the call took that goes through the shim, and the one that does not.
        took: [Duration; 2],
        shim: Option<Shim>,
    },
    /// The runtime did not answer, or everything is slow: this says nothing about the shim.
    Unknown,
}

/// What is known of a container.
#[derive(Debug, Clone, Copy)]
pub(super) enum ContainerVerdict {
    /// It answers, or the runtime says that it is gone.
    Answers,
    /// It does not, asked twice, while its sandbox and most containers of other pods do.
    Stuck {
        /// How long the first call was waited for, and what the sandbox's took meanwhile.
        waited: [Duration; 2],
    },
    /// Neither it nor most of the others answer, while its sandbox does.
    NoneAnswers {
        /// How long it was waited for.
        waited: Duration,
    },
    /// It was not asked, or the runtime as a whole is slow or away.
    Unknown,
}

/// Asks the pod's shim and its container.
pub(super) async fn ask<R: Runtime>(runtime: &R, target: &Target, how: How) -> Answers {
    let shim = ask_shim(runtime, target, &how);
    let container = ask_container(runtime, target, how.slow);
    let Some(alone) = &how.alone else {
        // Together they cost one wake-up.
        let ((shim, _), (container, _)) = join(shim, container).await;
        return Answers {
            shim,
            container,
            took: None,
        };
    };
    let (shim, through) = shim.await;
    let through = through.filter(|_| alone.load(Ordering::Relaxed));
    let (container, status) = container.await;
    let status = status.filter(|_| alone.load(Ordering::Relaxed));
    let took = match (through, status) {
        (Some(through), Some(status)) => Some((through + status) / 2),
        (through, status) => through.or(status),
    };
    Answers { shim, container, took }
}

/// Asks through the shim, and around it if that took long. The time is that of a call that was answered at once.
async fn ask_shim<R: Runtime>(runtime: &R, target: &Target, how: &How) -> (ShimVerdict, Option<Duration>) {
    let (sandbox, slow) = (&target.sandbox, how.slow);
    let subject = Subject::sandbox(target.pod.full_name(), sandbox.shared());
    let started = Instant::now();
    let answer: Result<(), Error> = runtime.probe_sandbox(&subject, sandbox).await;
    let through = started.elapsed();
    if answer.is_err_and(|error| !error.kind.is_deadline()) {
        return (ShimVerdict::Unknown, None);
    }
    if through < slow {
        return (ShimVerdict::Lives, Some(through));
    }
    let started = Instant::now();
    let plain = runtime.sandbox_status(&subject, sandbox).await;
    let around = started.elapsed();
    // Gone meanwhile, or the runtime does not answer at all; or everything is slow.
    if plain.is_err() || around * 2 >= through {
        return (ShimVerdict::Unknown, None);
    }
    // The whole runtime may have been away until a moment ago. It is the shim if it is so still, while others are answered.
    if let Ok(again) = timeout(slow, runtime.probe_sandbox(&subject, sandbox)).await {
        let verdict = again.map_or(ShimVerdict::Unknown, |()| ShimVerdict::Lives);
        return (verdict, None);
    }
    let mut shim = None;
    if how.search {
        let id = sandbox.clone();
        let found = tokio::task::spawn_blocking(move || Shim::of(id.as_str()));
        // A search that hangs is left to itself.
        shim = timeout(PROC_ANSWERS, found).await.ok().and_then(Result::ok).flatten();
    }
    let took = [through, around];
    (ShimVerdict::Hangs { took, shim }, None)
}

/// Asks for the container's status; if that takes long, others and then the container again. The time is as above.
async fn ask_container<R: Runtime>(
    runtime: &R,
    target: &Target,
    slow: Duration,
) -> (ContainerVerdict, Option<Duration>) {
    let Some(container) = &target.container else {
        return (ContainerVerdict::Unknown, None);
    };
    let subject = container_subject(&target.pod, container);
    let status = || runtime.container_status(&subject, &container.id, &container.name);
    let started = Instant::now();
    let first = status();
    tokio::pin!(first);
    let answer = timeout(slow, &mut first).await;
    if let Some(verdict) = verdict_of(answer.as_ref().ok()) {
        return (verdict, Some(started.elapsed()));
    }
    // A call that its own deadline ended must not be polled again.
    let ended = answer.is_ok();

    let asked = Instant::now();
    let sandbox = Subject::sandbox(target.pod.full_name(), target.sandbox.shared());
    let plain =
        timeout(slow / 2, runtime.sandbox_status(&sandbox, &target.sandbox)).map(|answer| (answer, asked.elapsed()));
    let others = join_all(target.witnesses.iter().map(|(pod, other)| async move {
        let subject = container_subject(pod, other);
        let answer = timeout(slow / 2, runtime.container_status(&subject, &other.id, &other.name)).await;
        verdict_of(answer.as_ref().ok()).is_some()
    }));
    let ((plain, around), others) = join(plain, others).await;
    if !matches!(plain, Ok(Ok(_))) {
        // Its pod is gone meanwhile, or the runtime does not answer at all.
        return (ContainerVerdict::Unknown, None);
    }
    let answered = others.iter().filter(|answered| **answered).count();
    if !others.is_empty() && answered * 2 <= others.len() {
        // It is like the others: slow, which is not a trouble, or no container answers.
        let late = if ended {
            None
        } else {
            timeout(slow * 3 / 4, &mut first).await.ok()
        };
        let waited = started.elapsed();
        let verdict = verdict_of(late.as_ref()).unwrap_or(ContainerVerdict::NoneAnswers { waited });
        return (verdict, None);
    }
    // Everything may have been away until a moment ago. It is the container if it is so still.
    let again = timeout(slow, status()).await;
    let late = if ended { None } else { first.now_or_never() };
    let verdict = verdict_of(again.as_ref().ok()).or_else(|| verdict_of(late.as_ref()));
    let stuck = ContainerVerdict::Stuck {
        waited: [started.elapsed(), around],
    };
    (verdict.unwrap_or(stuck), None)
}

fn container_subject(pod: &PodRef, container: &ContainerRef) -> Subject {
    Subject::container(pod.full_name(), container.name.clone(), container.id.shared())
}

/// What an answer says; none where there is no answer, or one that only says that it took too long.
fn verdict_of(answer: Option<&Result<ContainerStatus, Error>>) -> Option<ContainerVerdict> {
    match answer? {
        Err(error) if error.kind.is_deadline() => None,
        Err(error) if error.kind.is_unreachable() => Some(ContainerVerdict::Unknown),
        // An error is an answer too; the next inspection reports it.
        Ok(_) | Err(_) => Some(ContainerVerdict::Answers),
    }
}
