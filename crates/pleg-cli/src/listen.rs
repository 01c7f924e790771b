//! The sockets of the daemons and their permissions: flags that `pleg run` and `pleg node` share.

#![expect(clippy::doc_markdown, reason = "these comments are what --help prints")]

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use pleg_cri::Endpoint;

use crate::Usage;
use crate::address::parse_listen_tcp;
use crate::args::default_socket;
use crate::http::server::{Access, TcpSocket, UnixSocket};

/// Only for the daemon's user.
const OWNER: u32 = 0o600;
/// Also for its group.
const OWNER_AND_GROUP: u32 = 0o660;
/// The group database.
const GROUPS: &str = "/etc/group";

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "HTTP API")]
pub(crate) struct ListenArgs {
    /// Serve HTTP on this unix socket [default: /run/pleg/pleg.sock for root, else $XDG_RUNTIME_DIR/pleg.sock]
    #[arg(long, value_name = "ENDPOINT", value_parser = Endpoint::parse)]
    listen: Option<Endpoint>,
    /// Give the socket to this group, by name or number
    #[arg(long, value_name = "GROUP", value_parser = parse_group)]
    listen_group: Option<u32>,
    /// The socket's permissions, in octal [default: 0600, or 0660 with --listen-group]
    #[arg(long, value_name = "MODE", value_parser = parse_mode)]
    listen_mode: Option<u32>,
    /// Also serve HTTP on this TCP address, as in localhost:10255; only loopback unless --insecure-listen-any is given
    #[arg(long, value_name = "ADDRESS", value_parser = parse_listen_tcp)]
    listen_tcp: Option<SocketAddr>,
    /// Allow any address for --listen-tcp. Everyone who can reach it can read pod names and states
    #[arg(long, requires = "listen_tcp")]
    insecure_listen_any: bool,
}

impl ListenArgs {
    /// The path of the unix socket.
    pub(crate) fn path(&self) -> Result<PathBuf, Usage> {
        match &self.listen {
            Some(endpoint) => Ok(endpoint.path().to_owned()),
            None => default_socket()
                .ok_or_else(|| Usage("$XDG_RUNTIME_DIR is not set: name a socket with --listen".to_owned())),
        }
    }

    /// The TCP address, as text.
    pub(crate) fn tcp_text(&self) -> String {
        self.listen_tcp.map_or("none".to_owned(), |address| address.to_string())
    }

    fn mode(&self) -> u32 {
        let default = if self.listen_group.is_some() {
            OWNER_AND_GROUP
        } else {
            OWNER
        };
        self.listen_mode.unwrap_or(default)
    }

    /// Listens on the unix socket.
    pub(crate) async fn bind(&self) -> anyhow::Result<UnixSocket> {
        let access = Access {
            mode: self.mode(),
            group: self.listen_group,
        };
        UnixSocket::bind(&self.path()?, access).await
    }

    /// Listens on TCP, if configured.
    pub(crate) async fn bind_tcp(&self) -> anyhow::Result<Option<TcpSocket>> {
        match self.listen_tcp {
            Some(address) => TcpSocket::bind(address, self.insecure_listen_any).await.map(Some),
            None => Ok(None),
        }
    }
}

/// Parses a group: a number, or a name in `/etc/group`.
fn parse_group(text: &str) -> Result<u32, String> {
    if let Ok(gid) = text.parse() {
        return Ok(gid);
    }
    let groups = std::fs::read_to_string(GROUPS).map_err(|error| format!("{GROUPS} cannot be read: {error}"))?;
    group_id(&groups, text).ok_or_else(|| format!("no group of this name in {GROUPS}; use the numeric id"))
}

fn group_id(groups: &str, name: &str) -> Option<u32> {
    groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        let found = fields.next()? == name;
        // The second is a password.
        found.then(|| fields.nth(1)?.parse().ok()).flatten()
    })
}

fn parse_mode(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o777 && mode & 0o600 == 0o600 => Ok(mode),
        _ => Err("expected octal permissions that let the owner read and write, as in 0600 or 0660".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_names_and_numbers() {
        let groups = "root:x:0:\n# a comment\nbroken\nadm:x:4:syslog,me\nodd:x:many:\n";
        assert_eq!(group_id(groups, "adm"), Some(4));
        assert_eq!(group_id(groups, "root"), Some(0));
        for name in ["", "ad", "broken", "odd", "x"] {
            assert_eq!(group_id(groups, name), None, "{name}");
        }
        assert_eq!(parse_group("1234"), Ok(1234));
    }

    #[test]
    fn modes_are_octal() {
        assert_eq!((parse_mode("0660"), parse_mode("600")), (Ok(0o660), Ok(0o600)));
        for bad in ["", "rw", "0o660", "888", "1777", "0077", "0400"] {
            assert!(parse_mode(bad).is_err(), "{bad}");
        }
    }
}
