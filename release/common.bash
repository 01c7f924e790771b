#!/usr/bin/env bash
# What the scripts of this directory share. To be sourced.

# The root of the repository.
repository() { cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd; }

# The version of all crates.
version() { sed -n '/^\[workspace.package\]/,/^$/ s/^version = "\(.*\)"$/\1/p' "$(repository)/Cargo.toml"; }

# The time that everything made here has: that of the commit, so that the same source gives the same files.
epoch() { printf '%s' "${SOURCE_DATE_EPOCH:-$(git -C "$(repository)" log -1 --format=%ct 2>/dev/null || echo 0)}"; }

die() {
  printf '%s: %s\n' "${0##*/}" "$*" >&2
  exit 1
}

# The libraries that a program loads; none if it is static. ldd fails for some static programs, and says so of others.
libraries() { { ldd "$1" 2>/dev/null || true; } | { grep -o '/[^ ]*' || true; } | sort -u; }

# tar without anything of this machine in it: sorted, with one time and one owner.
plain_tar() {
  LC_ALL=C tar --create --format=ustar --sort=name --mtime="@$(epoch)" --owner=0 --group=0 --numeric-owner "$@"
}

# The usage in the head of a script: the comment after its first line.
usage() { sed -n '2,/^[^#]/p' "$0" | sed -n 's/^# \{0,1\}//p'; }
