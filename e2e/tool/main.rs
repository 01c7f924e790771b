//! The one program in the test image: small things that a container can do, by name.
//!
//! No dependencies, because it is linked statically by a bare compiler call (`build.rs`). It installs no signal handler: as
//! process 1 of its namespace it therefore never sees a SIGTERM, which is the stubborn container that some scenarios need. The
//! polite one is a shell with a trap, from busybox in the same image.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program of its own, read through the container's log"
)]
#![allow(
    clippy::disallowed_methods,
    reason = "a container sleeps; nobody tests this program's time"
)]

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

const USAGE: &str = "\
tool pause             stay until killed
tool sleep MS          stay for MS milliseconds, end with 0
tool exit N MS         stay for MS milliseconds, end with N
tool echo TEXT...      print TEXT, end with 0
tool eat MIB           hold MIB mebibytes, then stay
tool serve PORT        answer every HTTP request on 127.0.0.1:PORT with 200";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    run(&args).unwrap_or_else(|| {
        eprintln!("{USAGE}");
        ExitCode::from(64)
    })
}

fn run(args: &[&str]) -> Option<ExitCode> {
    match *args {
        ["pause"] => stay(),
        ["sleep", ms] => thread::sleep(Duration::from_millis(ms.parse().ok()?)),
        ["exit", code, ms] => {
            let code: u8 = code.parse().ok()?;
            thread::sleep(Duration::from_millis(ms.parse().ok()?));
            return Some(ExitCode::from(code));
        }
        ["echo", ..] => println!("{}", args[1..].join(" ")),
        ["eat", mib] => {
            let mut held: Vec<Vec<u8>> = Vec::new();
            for _ in 0..mib.parse().ok()? {
                // Other than zero, so that every page is really there.
                held.push(vec![1; 1 << 20]);
            }
            println!("holding {} MiB", held.len());
            stay();
        }
        ["serve", port] => return Some(serve(port.parse().ok()?)),
        _ => return None,
    }
    Some(ExitCode::SUCCESS)
}

fn stay() {
    loop {
        thread::park();
    }
}

fn serve(port: u16) -> ExitCode {
    let listener = match TcpListener::bind(("127.0.0.1", port)) {
        Ok(listener) => listener,
        Err(error) => {
            eprintln!("port {port}: {error}");
            return ExitCode::FAILURE;
        }
    };
    println!("serving on {port}");
    for stream in listener.incoming() {
        let Ok(mut stream) = stream else { continue };
        // One read is enough to have the request's line; what does not come is not waited for.
        let _ = stream.set_read_timeout(Some(Duration::from_secs(1)));
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\nconnection: close\r\n\r\nok\n");
    }
    ExitCode::SUCCESS
}
