//! What the commands do. Faults are the same for a simulator and a proxy; the rest is each one's own.

use std::sync::Arc;

use super::command::{Command, CommandError, Down, Fail, Hang, Object, Reply, Set, Unhang};
use crate::fault::Faults;
use crate::selector::{Selector, Target};
use crate::serve::listening::Switch;
use crate::stats::StatsSnapshot;

/// What takes commands: a simulator, or a proxy before a real runtime.
pub(crate) trait Commanded: Send + Sync + 'static {
    fn faults(&self) -> &Faults;
    fn stats(&self) -> StatsSnapshot;
    fn switch(&self) -> &Switch;

    /// The ids of the pod's sandboxes and containers, or of all attempts of one container.
    fn ids(&self, selector: &Selector) -> impl Future<Output = Result<Vec<Arc<str>>, CommandError>> + Send;

    /// Ends every fault.
    fn clear(&self) {
        self.faults().clear();
    }

    /// Executes a command that is not one of the faults common to both.
    fn own(&self, command: Command) -> impl Future<Output = Result<Reply, CommandError>> + Send;
}

/// `1 pod`, `2 pods`.
pub(crate) fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// The names, by which the rule can be ended, and the ids that they have now.
async fn resolve(on: &impl Commanded, target: Target) -> Result<(Option<Selector>, Vec<Arc<str>>), CommandError> {
    match target {
        Target::Named(selector) => {
            let ids = on.ids(&selector).await?;
            Ok((Some(selector), ids))
        }
        Target::Id(id) => Ok((None, vec![id])),
    }
}

/// Executes a command.
pub(crate) async fn execute(on: &impl Commanded, command: Command) -> Result<Reply, CommandError> {
    let faults = on.faults();
    let done = match command {
        Command::Hang(hung) => hang(on, hung).await?,
        Command::Unhang(hung) => unhang(faults, hung)?,
        Command::Lock(object) => lock(on, object).await?,
        Command::Unlock(object) => unlock(faults, object)?,
        Command::Set(set) => apply(on, set).await?,
        Command::Fail(Fail { rpc, code, rate }) => {
            faults.fail(rpc.0, code, rate)?;
            format!("{rpc} fails with {code} at a rate of {rate}")
        }
        Command::Down(Down { length }) => {
            if !on.switch().down(length.0).await {
                return Err(CommandError::Invalid("the simulator is shutting down".into()));
            }
            format!("down for {length}")
        }
        Command::Events(events) => {
            faults.set_events(events)?;
            "event faults set".to_owned()
        }
        Command::Clear {} => {
            on.clear();
            "all faults ended".to_owned()
        }
        Command::Stats {} => return Ok(Reply::Stats(on.stats())),
        command => return on.own(command).await,
    };
    Ok(Reply::Done(done))
}

async fn hang(on: &impl Commanded, hang: Hang) -> Result<String, CommandError> {
    let Hang {
        rpc,
        pod,
        container,
        id,
    } = hang;
    let Some(target) = (Object { pod, container, id }).target()? else {
        on.faults().hang(rpc.0, None, None)?;
        return Ok(format!("{rpc} hangs until unhang"));
    };
    let done = format!("{rpc} about {target} hangs until unhang");
    let (selector, ids) = resolve(on, target).await?;
    on.faults().hang(rpc.0, selector, Some(ids))?;
    Ok(done)
}

fn unhang(faults: &Faults, unhang: Unhang) -> Result<String, CommandError> {
    let Unhang {
        rpc,
        pod,
        container,
        id,
    } = unhang;
    let rpc = rpc.map(|rpc| rpc.0);
    let count = match (Object { pod, container, id }).target()? {
        Some(Target::Id(id)) => faults.unhang_id(rpc, &id),
        Some(Target::Named(selector)) => faults.unhang(rpc, Some(&selector)),
        None => faults.unhang(rpc, None),
    };
    Ok(format!("{} ended", counted(count, "hang")))
}

async fn lock(on: &impl Commanded, object: Object) -> Result<String, CommandError> {
    let target = object
        .target()?
        .ok_or_else(|| CommandError::Invalid("lock needs a container: use --pod and --container, or --id".into()))?;
    let done = format!("{target} is locked: ListContainers hangs until unlock");
    let (selector, ids) = resolve(on, target).await?;
    on.faults().lock(selector, ids)?;
    Ok(done)
}

fn unlock(faults: &Faults, object: Object) -> Result<String, CommandError> {
    let count = match object.target()? {
        Some(Target::Id(id)) => faults.unlock_id(&id),
        Some(Target::Named(selector)) => faults.unlock(Some(&selector)),
        None => faults.unlock(None),
    };
    Ok(format!("{} ended", counted(count, "lock")))
}

/// Latency is a fault like others; the rest belongs to a world.
async fn apply(on: &impl Commanded, set: Set) -> Result<String, CommandError> {
    let Set {
        latency,
        jitter,
        rpc,
        pod,
        container,
        id,
        ..
    } = set;
    let own = Set {
        latency: None,
        jitter: None,
        rpc: None,
        pod: None,
        container: None,
        id: None,
        ..set
    };
    // Everything is validated before anything is changed.
    let target = Object { pod, container, id }.target()?;
    if target.is_some() && latency.is_none() {
        let words = "--pod, --container and --id need --latency";
        return Err(CommandError::Invalid(words.into()));
    }
    let about = target
        .as_ref()
        .map_or(String::new(), |target| format!(" about {target}"));
    let objects = match target {
        Some(target) => Some(resolve(on, target).await?),
        None => None,
    };
    let mut done = Vec::new();
    if own != Set::default()
        && let Reply::Done(words) = on.own(Command::Set(own)).await?
    {
        done.push(words);
    }
    if let Some(latency) = latency {
        let jitter = jitter.unwrap_or_default();
        let calls = rpc.map_or_else(|| "every call".to_owned(), |rpc| rpc.to_string());
        let rpc = rpc.map(|rpc| rpc.0);
        if let Some((selector, ids)) = objects {
            on.faults().set_latency_of(rpc, selector, ids, latency.0, jitter.0)?;
        } else {
            on.faults().set_latency(rpc, latency.0, jitter.0);
        }
        done.push(format!("{calls}{about} takes {latency}"));
    }
    if done.is_empty() {
        let words = "nothing to set: use --latency, --churn or the Status flags";
        return Err(CommandError::Invalid(words.into()));
    }
    Ok(done.join(", "))
}
