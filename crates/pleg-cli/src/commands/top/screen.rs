//! The terminal while `pleg top` has it: raw mode, the alternate screen, no cursor; and how it is given back.
//!
//! A thread writes, so that a terminal that does not take what is written (a stalled ssh connection) blocks neither the generator nor a
//! signal. Frames wait in a queue of one: while it is full, nothing is drawn, and the next frame shows what is true by then.
//!
//! The terminal is given back at the end, before a stop by Ctrl-Z, and by the hook of a panic, in whichever thread or task that happens.

use std::cell::RefCell;
use std::io::{self, Write};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::terminal::Terminal;
use ratatui_crossterm::CrosstermBackend;
use ratatui_crossterm::crossterm::terminal::{disable_raw_mode, enable_raw_mode};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

/// Alternate screen, no cursor, pasted text in brackets; cleared.
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l\x1b[?2004h\x1b[2J";
/// The opposite, in the opposite order; and plain text.
const LEAVE: &[u8] = b"\x1b[0m\x1b[?2004l\x1b[?25h\x1b[?1049l";
/// How long a terminal has to take the last bytes.
const PATIENCE: Duration = Duration::from_secs(1);

/// What a frame is written to before it is queued.
#[derive(Debug, Clone, Default)]
struct Frame(Rc<RefCell<Vec<u8>>>);

impl Write for Frame {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// For the thread that writes.
enum Order {
    Write(Vec<u8>),
    /// Everything before it is written.
    Done(oneshot::Sender<()>),
}

/// The terminal, in use.
pub(super) struct Screen {
    terminal: Terminal<CrosstermBackend<Frame>>,
    frame: Frame,
    /// The last frame that was queued; none if something else may be on the screen.
    shown: Option<Buffer>,
    orders: mpsc::Sender<Order>,
    /// Nothing may be written any more: the terminal is the user's again.
    left: Arc<AtomicBool>,
}

impl Screen {
    /// Takes the terminal. A panic gives it back and cancels `panicked`.
    pub(super) fn enter(panicked: &CancellationToken) -> anyhow::Result<Self> {
        let left = Arc::new(AtomicBool::new(false));
        let (orders, queue) = mpsc::channel(1);
        let frame = Frame::default();
        let terminal =
            Terminal::new(CrosstermBackend::new(frame.clone())).context("cannot read the terminal's size")?;
        start_writer(queue, Arc::clone(&left))?;
        hook_panics(Arc::clone(&left), panicked.clone());
        // From here on an early return gives the terminal back.
        let screen = Self {
            terminal,
            frame,
            shown: None,
            orders,
            left,
        };
        enable_raw_mode().context("cannot switch the terminal to raw mode")?;
        write_all(ENTER).context("cannot write to the terminal")?;
        Ok(screen)
    }

    /// Columns and lines.
    pub(super) fn size(&self) -> (u16, u16) {
        self.terminal.size().map_or((0, 0), |size| (size.width, size.height))
    }

    /// Waits until there is room for another frame. Fails once the terminal is gone. Cancel-safe.
    pub(super) async fn ready(&self) -> anyhow::Result<()> {
        match self.orders.reserve().await {
            Ok(_) => Ok(()),
            Err(_) => anyhow::bail!("the terminal is gone"),
        }
    }

    /// Draws what changed since the last frame, which is queued. To be called when [`Self::ready`].
    pub(super) fn draw(&mut self, draw: impl FnOnce(&mut Buffer)) -> anyhow::Result<()> {
        let drawn = self.terminal.draw(|frame| draw(frame.buffer_mut()))?;
        let bytes = std::mem::take(&mut *self.frame.0.borrow_mut());
        if self.shown.as_ref() == Some(drawn.buffer) {
            // What is left only hides the cursor once more.
            return Ok(());
        }
        self.shown = Some(drawn.buffer.clone());
        // Only this task sends, so a queue that had room has it still; if the terminal is gone, `ready` says so.
        let _ = self.orders.try_send(Order::Write(bytes));
        Ok(())
    }

    /// Forgets what is on the screen.
    pub(super) fn clear(&mut self) -> anyhow::Result<()> {
        self.shown = None;
        let (columns, lines) = self.size();
        // `Terminal::clear` would ask the terminal where its cursor is, and the answer would come in between the keys.
        Ok(self.terminal.resize(Rect::new(0, 0, columns, lines))?)
    }

    /// Gives the terminal back for a while.
    pub(super) async fn suspend(&mut self) {
        self.order(LEAVE).await;
        let _ = disable_raw_mode();
    }

    /// Takes it again.
    pub(super) async fn resume(&mut self) -> anyhow::Result<()> {
        // It may have been stopped by somebody else, without leaving; the shell has changed the modes all the same.
        let _ = disable_raw_mode();
        enable_raw_mode().context("cannot switch the terminal to raw mode")?;
        self.order(ENTER).await;
        self.clear()
    }

    /// Writes these bytes after everything that is queued, if the terminal takes them.
    async fn order(&mut self, bytes: &[u8]) {
        let written = async {
            let (done, wait) = oneshot::channel();
            self.orders.send(Order::Write(bytes.to_vec())).await.ok()?;
            self.orders.send(Order::Done(done)).await.ok()?;
            wait.await.ok()
        };
        // If it does not, there is nothing that would help.
        let _ = tokio::time::timeout(PATIENCE, written).await;
    }

    /// Gives the terminal back.
    pub(super) async fn leave(mut self) {
        if !self.left.load(Ordering::Acquire) {
            self.order(LEAVE).await;
            self.left.store(true, Ordering::Release);
        }
        // The rest happens when this is dropped.
    }
}

impl Drop for Screen {
    /// Also for errors on the way: whoever returns early has not left.
    fn drop(&mut self) {
        give_back(&self.left);
    }
}

impl std::fmt::Debug for Screen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Screen").finish_non_exhaustive()
    }
}

/// Leaves the alternate screen, unless that was done, and restores the modes of the terminal.
fn give_back(left: &AtomicBool) {
    if !left.swap(true, Ordering::AcqRel) {
        let _ = write_all(LEAVE);
    }
    let _ = disable_raw_mode();
}

fn start_writer(mut queue: mpsc::Receiver<Order>, left: Arc<AtomicBool>) -> anyhow::Result<()> {
    std::thread::Builder::new().name("screen".to_owned()).spawn(move || {
        while let Some(order) = queue.blocking_recv() {
            match order {
                Order::Done(done) => drop(done.send(())),
                Order::Write(bytes) => {
                    if left.load(Ordering::Acquire) || write_all(&bytes).is_err() {
                        return;
                    }
                }
            }
        }
    })?;
    Ok(())
}

/// Writes past the buffer and the lock of stdout: a thread that is blocked holds neither against the hook of a panic.
fn write_all(mut bytes: &[u8]) -> io::Result<()> {
    let stdout = io::stdout();
    while !bytes.is_empty() {
        match rustix::io::write(&stdout, bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => {
                let mut polled = [rustix::event::PollFd::new(&stdout, rustix::event::PollFlags::OUT)];
                rustix::event::poll(&mut polled, None)?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// What a panic says has to be readable.
fn hook_panics(left: Arc<AtomicBool>, panicked: CancellationToken) {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        give_back(&left);
        usual(panic);
        panicked.cancel();
    }));
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read as _;
    use std::os::fd::OwnedFd;
    use std::process::{Command, Stdio};

    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};

    use super::*;

    /// Run by the test below, on a terminal of its own.
    #[test]
    #[ignore = "panics, for the test below"]
    fn panics_on_the_screen() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let mut screen = Screen::enter(&CancellationToken::new()).unwrap();
            screen.ready().await.unwrap();
            screen
                .draw(|buffer| {
                    buffer.set_stringn(0, 0, "drawn", 10, ratatui_core::style::Style::new());
                })
                .unwrap();
            panic!("said on a clean terminal");
        });
    }

    fn modes(terminal: &Termios) -> String {
        let Termios {
            input_modes,
            output_modes,
            control_modes,
            local_modes,
            ..
        } = terminal;
        format!("{input_modes:?} {output_modes:?} {control_modes:?} {local_modes:?}")
    }

    /// The side of the user, and the side of the program.
    fn terminal() -> (File, File) {
        let user: OwnedFd = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&user).unwrap();
        unlockpt(&user).unwrap();
        let name = ptsname(&user, Vec::new()).unwrap().into_string().unwrap();
        let program = File::options().read(true).write(true).open(name).unwrap();
        let size = Winsize {
            ws_row: 24,
            ws_col: 80,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&program, size).unwrap();
        (user.into(), program)
    }

    #[test]
    fn a_panic_gives_the_terminal_back_before_it_speaks() {
        let (mut user, program) = terminal();
        let before = modes(&tcgetattr(&program).unwrap());
        let side = || Stdio::from(program.try_clone().unwrap());
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "--nocapture", "--test-threads=1"])
            .arg(concat!(module_path!(), "::panics_on_the_screen").trim_start_matches("pleg::"))
            .env("RUST_BACKTRACE", "0")
            .stdin(side())
            .stdout(side())
            .stderr(side())
            .spawn()
            .unwrap();
        let reader = std::thread::spawn(move || {
            let mut output = Vec::new();
            let mut chunk = [0; 4096];
            // Fails with EIO once the other side is closed.
            while let Ok(n @ 1..) = user.read(&mut chunk) {
                output.extend_from_slice(&chunk[..n]);
            }
            String::from_utf8_lossy(&output).into_owned()
        });
        let status = child.wait().unwrap();
        let after = modes(&tcgetattr(&program).unwrap());
        drop(program);
        let output = reader.join().unwrap();
        assert!(!status.success(), "{output:?}");
        assert_eq!(after, before);
        let place = |text: &[u8]| {
            let text = std::str::from_utf8(text).unwrap();
            output.find(text).unwrap_or_else(|| panic!("no {text:?} in {output:?}"))
        };
        assert!(place(ENTER) < place(LEAVE), "{output:?}");
        assert!(place(LEAVE) < place(b"said on a clean terminal"), "{output:?}");
        let rest = &output[place(LEAVE) + LEAVE.len()..];
        assert!(!rest.contains('\u{1b}'), "nothing is drawn after it: {rest:?}");
    }
}
