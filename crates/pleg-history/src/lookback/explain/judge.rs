//! From what is known of the last death to an answer: which verdict, in which words, and what to type next. The first rule that applies
//! decides; what is a fact of the kernel or the runtime comes before what only happened at the same time.

use pleg::PodRef;

use super::{ContainerSummary, Death, Evidence, EvidenceKind, Verdict};
use crate::lookback::troubles::TroubleSpan;

/// Node trouble that is older than this when a container dies did not kill it.
const NODE_TROUBLE_BEFORE: f64 = 120.0;

/// What a verdict depends on.
pub(super) struct Facts<'a> {
    pub(super) pod: &'a PodRef,
    /// The death to explain; none if nothing died.
    pub(super) death: Option<&'a Death>,
    /// The stop of that container was announced.
    pub(super) stopped: bool,
    pub(super) deaths: u64,
    pub(super) containers: &'a [ContainerSummary],
    pub(super) troubles: &'a [TroubleSpan],
    pub(super) removed: bool,
}

/// A verdict in words.
pub(super) struct Answer {
    pub(super) verdict: Verdict,
    pub(super) summary: String,
    pub(super) means: String,
    pub(super) next: Vec<String>,
}

pub(super) fn judge(facts: &Facts<'_>) -> Answer {
    let verdict = match facts.death {
        Some(death) => verdict(death, facts.stopped),
        None if facts.troubles.iter().any(|span| span.to.is_none()) => Verdict::Stuck,
        None => Verdict::Quiet,
    };
    Answer {
        verdict,
        summary: summary(verdict, facts),
        means: means(verdict).to_owned(),
        next: next(verdict, facts),
    }
}

fn verdict(death: &Death, stopped: bool) -> Verdict {
    let (code, reason) = (death.exit_code, death.reason.as_deref());
    let has = |kind: EvidenceKind| death.before.iter().any(|evidence| evidence.kind == kind);
    let node_trouble = |evidence: &Evidence| {
        matches!(evidence.kind, EvidenceKind::NodeTrouble | EvidenceKind::NodeHealth)
            && evidence.seconds_before <= NODE_TROUBLE_BEFORE
    };
    // A process that ends by itself, with its own code, was not killed by what happened around it.
    let from_outside = matches!(code, None | Some(137 | 143 | 255)) || reason == Some("Unknown");
    match (reason, code) {
        (Some("OOMKilled"), _) => Verdict::OomKilled,
        _ if has(EvidenceKind::Evicted) => Verdict::Evicted,
        // A readiness probe kills nothing, and what ended by itself was not killed by a probe.
        _ if has(EvidenceKind::ProbeFailed) && (stopped || from_outside) => Verdict::ProbeFailed,
        _ if stopped => Verdict::Stopped,
        (Some("StartError" | "ContainerCannotRun" | "CreateContainerError"), _) | (_, Some(126..=128)) => {
            Verdict::CannotStart
        }
        _ if from_outside && death.before.iter().any(node_trouble) => Verdict::NodeTrouble,
        _ if from_outside && has(EvidenceKind::SandboxLost) => Verdict::SandboxLost,
        (_, Some(137 | 143)) => Verdict::Killed,
        (_, Some(code)) if signal(code).is_some() => Verdict::Crashed,
        (_, Some(0)) | (Some("Completed"), None) => Verdict::Completed,
        (_, Some(_)) | (Some("Error"), None) => Verdict::Failed,
        (_, None) => Verdict::Unknown,
    }
}

/// The signal that an exit code stands for.
pub(super) fn signal(code: i32) -> Option<&'static str> {
    Some(match code {
        129 => "SIGHUP",
        130 => "SIGINT",
        131 => "SIGQUIT",
        132 => "SIGILL",
        133 => "SIGTRAP",
        134 => "SIGABRT",
        135 => "SIGBUS",
        136 => "SIGFPE",
        137 => "SIGKILL",
        139 => "SIGSEGV",
        141 => "SIGPIPE",
        143 => "SIGTERM",
        159 => "SIGSYS",
        _ => return None,
    })
}

fn summary(verdict: Verdict, facts: &Facts<'_>) -> String {
    let Some(death) = facts.death else {
        return quiet(verdict, facts);
    };
    let container = &death.container;
    let code = death
        .exit_code
        .map_or_else(String::new, |code| format!(", exit code {code}"));
    let reason = death.reason.as_deref().unwrap_or("no reason given");
    let signal = death.signal.as_deref().unwrap_or("a signal");
    let what = match verdict {
        Verdict::OomKilled => format!("container {container} ran out of memory (OOMKilled{code})"),
        Verdict::ProbeFailed => format!("container {container} was killed because its probe failed ({reason}{code})"),
        Verdict::Evicted => format!("container {container} was stopped because its pod was evicted ({reason}{code})"),
        Verdict::Stopped => format!("container {container} was stopped by the node, as announced ({reason}{code})"),
        Verdict::CannotStart => format!("container {container} cannot start ({reason}{code})"),
        Verdict::NodeTrouble => {
            format!("container {container} died with or right after trouble of the node ({reason}{code})")
        }
        Verdict::SandboxLost => format!("container {container} died with its sandbox ({reason}{code})"),
        Verdict::Killed => format!("container {container} was killed from outside by {signal} ({reason}{code})"),
        Verdict::Crashed => format!("container {container} crashed with {signal} ({reason}{code})"),
        Verdict::Failed => format!("container {container} failed by itself ({reason}{code})"),
        Verdict::Completed => format!("container {container} ended by itself, without an error ({reason}{code})"),
        Verdict::Unknown | Verdict::Quiet | Verdict::Stuck => {
            format!("container {container} died, and the runtime does not say how ({reason}{code})")
        }
    };
    let times = match facts.deaths {
        1 => "1 death in this window".to_owned(),
        n => format!("{n} deaths in this window"),
    };
    let gone = if facts.removed {
        "; the pod has been removed since"
    } else {
        ""
    };
    format!("{what}; {times}{gone}")
}

fn quiet(verdict: Verdict, facts: &Facts<'_>) -> String {
    if verdict == Verdict::Stuck {
        let open: Vec<_> = facts
            .troubles
            .iter()
            .filter(|span| span.to.is_none())
            .map(|span| span.trouble.as_str())
            .collect();
        return format!("nothing died, but not all of it can be seen: {}", open.join(", "));
    }
    let running = facts.containers.iter().filter(|container| container.running).count();
    match (facts.containers.is_empty(), running) {
        _ if facts.removed => "nothing was seen to die; the pod has been removed".to_owned(),
        (true, _) => "nothing happened to its containers in this window".to_owned(),
        (false, 0) => "nothing died in this window, and nothing is known to run".to_owned(),
        (false, 1) => "nothing died in this window; 1 container runs".to_owned(),
        (false, n) => format!("nothing died in this window; {n} containers run"),
    }
}

fn means(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Quiet => "No container of the pod died while it was watched.",
        Verdict::Stuck => {
            "The runtime does not answer about a container or the sandbox of the pod, so its state is not known: a death may not be seen."
        }
        Verdict::OomKilled => {
            "The container's processes needed more memory than its limit allows, or the machine had none left and the kernel chose it."
        }
        Verdict::ProbeFailed => {
            "The program ran and did not answer its liveness or startup probe: it hangs, is overloaded, or the probe is too impatient."
        }
        Verdict::Evicted => "The machine was short of memory, disk or process ids, and this pod had to go.",
        Verdict::Stopped => {
            "The node ended it on purpose: the pod was deleted, changed or evicted, or a probe failed; it is no crash."
        }
        Verdict::CannotStart => {
            "The runtime could not start its process: a command or entry point that is not in the image, a missing permission, or a mount \
             that fails."
        }
        Verdict::NodeTrouble => {
            "The runtime was down, restarted or did not answer around that time; the container is more likely a victim than a cause."
        }
        Verdict::SandboxLost => {
            "The whole pod went, not this container alone: its sandbox was stopped or died, as by an eviction, a deletion, a reboot or a \
             network plugin that failed."
        }
        Verdict::Killed => {
            "It did not end by itself and did not run out of memory: a kubelet kills like this after a failed liveness or startup probe, at \
             the end of a grace period and in an eviction; else somebody did it by hand. Only the kubelet's events tell."
        }
        Verdict::Crashed => "The program ended by a fault of its own: its log and a core dump tell more.",
        Verdict::Failed => "The program decided to exit with an error: its last log lines usually say why.",
        Verdict::Completed => {
            "The program ended as one that has done its work; if it should keep running, its command ends too early."
        }
        Verdict::Unknown => "The runtime lost track of it, as after an unclean restart.",
    }
}

/// Commands to type next, only with names that are safe in a shell.
fn next(verdict: Verdict, facts: &Facts<'_>) -> Vec<String> {
    let is_word = |text: &str| {
        let safe = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        !text.is_empty() && !text.starts_with('-') && text.chars().all(safe)
    };
    let pod = facts.pod;
    if !is_word(&pod.namespace) || !is_word(&pod.name) {
        return vec!["pleg history".to_owned()];
    }
    let (namespace, name) = (&pod.namespace, &pod.name);
    let container = facts
        .death
        .map(|death| death.container.as_str())
        .filter(|name| is_word(name));
    let id = facts
        .death
        .map(|death| death.container_id.as_str())
        .filter(|id| is_word(id));
    let logs = container.map(|container| format!("kubectl logs -n {namespace} {name} -c {container} --previous"));
    let crictl = |what: &str| id.map(|id| format!("crictl {what} {}", id.get(..13).unwrap_or(id)));
    let describe = Some(format!("kubectl describe pod -n {namespace} {name}"));
    let history = Some(format!("pleg history {namespace}/{name}"));
    let commands = match verdict {
        Verdict::Quiet => [history, None, None],
        Verdict::Stuck => [
            Some(format!("pleg inspect {namespace}/{name}")),
            Some("pleg doctor".to_owned()),
            history,
        ],
        Verdict::OomKilled | Verdict::ProbeFailed => [describe, logs, history],
        Verdict::Evicted => [describe, Some("pleg health".to_owned()), history],
        Verdict::Stopped | Verdict::Killed | Verdict::SandboxLost => [describe, history, None],
        Verdict::CannotStart => [crictl("inspect"), describe, history],
        Verdict::NodeTrouble => [Some("pleg report".to_owned()), history, None],
        Verdict::Crashed | Verdict::Failed | Verdict::Completed => [logs, crictl("logs"), history],
        Verdict::Unknown => [crictl("inspect"), history, None],
    };
    commands.into_iter().flatten().collect()
}
