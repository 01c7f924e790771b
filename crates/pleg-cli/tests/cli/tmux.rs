//! A real terminal for a test: a tmux server of its own, with a shell in it.

use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

use crate::node::wait_for;

/// A terminal with a shell that waits for commands.
pub(crate) struct Terminal {
    tmux: Tmux,
    dir: TempDir,
    /// What `stty -a` said before anything ran.
    modes: String,
}

/// The program, and the libraries it needs if it is the one of the cache.
struct Tmux {
    program: PathBuf,
    libraries: Option<String>,
}

impl Tmux {
    /// From the PATH, else from the cache that `e2e/containerd/fetch` fills.
    fn find() -> Option<Self> {
        let runs = |tmux: &Self| {
            tmux.command()
                .arg("-V")
                .output()
                .is_ok_and(|output| output.status.success())
        };
        let installed = Self {
            program: "tmux".into(),
            libraries: None,
        };
        if runs(&installed) {
            return Some(installed);
        }
        let cache = std::env::var_os("PLEG_CACHE").map(PathBuf::from).or_else(|| {
            let base = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
            let base = base.or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")));
            base.map(|base| base.join("pleg"))
        })?;
        let prefix = cache.join("tmux");
        let triple = format!("{}-linux-gnu", std::env::consts::ARCH);
        let libraries = ["usr/lib", "lib"].map(|dir| prefix.join(dir).join(&triple).display().to_string());
        let fetched = Self {
            program: prefix.join("usr/bin/tmux"),
            libraries: Some(libraries.join(":")),
        };
        runs(&fetched).then_some(fetched)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        if let Some(libraries) = &self.libraries {
            command.env("LD_LIBRARY_PATH", libraries);
        }
        command
    }
}

impl Terminal {
    /// Opens one; none on a machine without tmux, which is said, and is a failure in CI.
    pub(crate) fn open(columns: u16, lines: u16) -> Option<Self> {
        let Some(tmux) = Tmux::find() else {
            let why = "no tmux on the PATH, and e2e/containerd/fetch has not fetched it";
            assert!(std::env::var_os("CI").is_none(), "CI has to run this: {why}");
            let mut stderr = std::io::stderr();
            let _ = std::io::Write::write_fmt(
                &mut stderr,
                format_args!("LEFT OUT, pleg top was not tried on a terminal: {why}\n"),
            );
            return None;
        };
        let mut terminal = Self {
            tmux,
            dir: tempfile::tempdir().unwrap(),
            modes: String::new(),
        };
        let (columns, lines) = (columns.to_string(), lines.to_string());
        terminal.tmux(&[
            "-u",
            "-f",
            "/dev/null",
            "new-session",
            "-d",
            "-x",
            &columns,
            "-y",
            &lines,
            "env",
            "PS1=ready$ ",
            "sh",
        ]);
        terminal.wait_for("ready$");
        terminal.modes = terminal.stty("before");
        Some(terminal)
    }

    fn tmux(&self, args: &[&str]) -> String {
        let mut command = self.tmux.command();
        for variable in [
            "CONTAINER_RUNTIME_ENDPOINT",
            "PLEG_DAEMON",
            "NO_COLOR",
            "TMUX",
            "LC_ALL",
        ] {
            command.env_remove(variable);
        }
        command
            .env("TZ", "UTC")
            .env("LANG", "C.UTF-8")
            .env("TERM", "xterm-256color");
        command.arg("-S").arg(self.dir.path().join("tmux.sock")).args(args);
        let output = command.output().unwrap();
        assert!(
            output.status.success(),
            "{args:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    }

    /// Types keys by their names in tmux.
    pub(crate) fn press(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"], keys].concat());
    }

    /// Types a text as it is.
    pub(crate) fn type_text(&self, text: &str) {
        self.tmux(&["send-keys", "-l", text]);
    }

    /// Types a command for the shell.
    pub(crate) fn run(&self, command: &str) {
        self.type_text(command);
        self.press(&["Enter"]);
    }

    /// Starts the binary; its process id is that of the returned file's content.
    pub(crate) fn pleg(&self, args: &str) -> PathBuf {
        let pid = self.dir.path().join("pid");
        let _ = std::fs::remove_file(&pid);
        let binary = env!("CARGO_BIN_EXE_pleg");
        self.run(&format!(
            "clear; sh -c 'echo $$ >{}; exec {binary} {args}'; echo ended with $?",
            pid.display()
        ));
        pid
    }

    pub(crate) fn resize(&self, columns: u16, lines: u16) {
        self.tmux(&["resize-window", "-x", &columns.to_string(), "-y", &lines.to_string()]);
    }

    /// What is on the screen.
    pub(crate) fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    pub(crate) fn wait_for(&self, text: &str) {
        self.wait_until(text, |screen| screen.contains(text));
    }

    pub(crate) fn wait_until(&self, what: &str, is: impl Fn(&str) -> bool) {
        let mut screen = String::new();
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            wait_for(what, || {
                screen = self.screen();
                is(&screen)
            });
        }));
        assert!(found.is_ok(), "no {what:?} on the screen:\n{screen}");
    }

    fn stty(&self, name: &str) -> String {
        let file = self.dir.path().join(name);
        let done = self.dir.path().join(format!("{name}.done"));
        self.run(&format!("stty -a >{}; touch {}", file.display(), done.display()));
        wait_for("stty", || done.exists());
        let modes = std::fs::read_to_string(&file).unwrap();
        // The size is none of the modes.
        modes.lines().skip(1).collect::<Vec<_>>().join("\n")
    }

    /// The program has ended with 0, and the terminal is as it was: its modes, its screen, its cursor.
    pub(crate) fn is_clean(&self) {
        self.wait_for("ended with 0");
        let screen = self.screen();
        assert!(
            !screen.contains("READY"),
            "the screen of the program is left:\n{screen}"
        );
        assert_eq!(
            self.tmux(&["display-message", "-p", "#{alternate_on} #{cursor_flag}"])
                .trim(),
            "0 1"
        );
        assert_eq!(self.stty("after"), self.modes);
        let _ = std::fs::remove_file(self.dir.path().join("after.done"));
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let mut command = self.tmux.command();
        let socket = self.dir.path().join("tmux.sock");
        let _ = command.arg("-S").arg(socket).arg("kill-server").output();
    }
}
