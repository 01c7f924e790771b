#!/usr/bin/env bash
# For scripts to source: unpacks Debian packages into prefixes of the cache, without touching the host's package state.
#
# The script that sources this sets
#   wanted   rows `prefix suite package...`: what is to be there
#   proofs   rows `prefix program argument`: what has to run before a prefix is taken as whole
# and calls fetch_wanted. It may use `cache` (the cache directory), say, die and try.
#
# Why packages: the distribution builds them for us, signed, behind whatever mirror this machine's apt already uses. Why a private
# apt state: the host's package lists, status and cache are none of our business, so nothing is installed.
set -euo pipefail

cache="${PLEG_CACHE:-${XDG_CACHE_HOME:-${HOME:?HOME is not set; set PLEG_CACHE}/.cache}/pleg}"
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
wanted=()
proofs=()
missing=()

say() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; }
die() { say "$@"; exit 1; }

look() {
  missing=()
  local row prefix packages package
  for row in "${wanted[@]}"; do
    read -r prefix _ packages <<<"$row"
    for package in $packages; do
      grep -qs "^$package " "$cache/$prefix/.versions" || { missing+=("$row"); break; }
    done
  done
}

# The address of the Debian archive this machine already uses, whatever it is.
mirror() {
  local uri suite
  # The format is apt's, not the shell's.
  # shellcheck disable=SC2016
  apt-get indextargets --format '$(REPO_URI) $(RELEASE)' 'Created-By: Packages' | while read -r uri suite; do
    case "$suite" in
      bookworm | trixie | forky | sid | testing | stable | unstable) printf '%s\n' "$uri"; break ;;
    esac
  done
}

# Up to four tries, a little longer between each: a busy mirror is no reason to fail.
try() {
  local attempt
  for attempt in 1 2 3 4; do
    "$@" && return
    [ "$attempt" = 4 ] || { say "that was try $attempt of 4; again in $((attempt * 3)) s"; sleep $((attempt * 3)); }
  done
  return 1
}

# Holds the lock of this name in the cache until release_lock or the end: two runs would do the same work twice.
lock() {
  mkdir -p "$cache"
  exec 9>"$cache/$1"
  flock -n 9 || { say "another run is at work, waiting for it"; flock 9; }
}
release_lock() { exec 9>&-; }

# An apt that reads the host's settings (proxy, certificates) but none of its state. The hooks go: they touch the host.
private_apt() {
  local dir=$1 uri=$2 row suite
  shift 2
  mkdir -p "$dir/lists/partial" "$dir/archives/partial" "$dir/debs"
  : >"$dir/status"
  for row in "$@"; do
    read -r _ suite _ <<<"$row"
    printf 'deb [signed-by=%s] %s %s main\n' "$keyring" "$uri" "$suite"
  done | sort -u >"$dir/sources.list"
  cat >"$dir/apt.conf" <<CONF
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
Dir::Etc::SourceList "$dir/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::Etc::Preferences "/dev/null";
Dir::Etc::PreferencesParts "/dev/null";
Dir::State "$dir";
Dir::State::Lists "$dir/lists";
Dir::State::status "$dir/status";
Dir::State::extended_states "$dir/extended_states";
Dir::Cache "$dir";
Dir::Cache::archives "$dir/archives";
APT::Sandbox::User "root";
APT::Update::Error-Mode "any";
APT::Install-Recommends "false";
Acquire::Languages "none";
Acquire::Retries "3";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
Acquire::IndexTargets::deb::DEP-11-icons-small::DefaultEnabled "false";
Acquire::IndexTargets::deb::DEP-11-icons::DefaultEnabled "false";
CONF
}

# Downloads one row's packages and unpacks them; the prefix appears only when it is whole.
fetch_row() {
  local dir=$1 prefix suite packages deb
  read -r prefix suite packages <<<"$2"
  local debs="$dir/debs/$prefix" root="$dir/$prefix" names=()
  mkdir -p "$debs" "$root"
  for deb in $packages; do names+=("$deb/$suite"); done
  say "$prefix: ${packages// /, } from $suite"
  (cd "$debs" && try apt-get -q=2 -c "$dir/apt.conf" download "${names[@]}") ||
    die "cannot download $packages from $suite"
  for deb in "$debs"/*.deb; do
    dpkg-deb -x "$deb" "$root"
    dpkg-deb -f "$deb" Package Version | paste -sd' ' | sed 's/Package: //; s/ Version://' >>"$root/.versions"
  done
  proof "$prefix" "$root"
  rm -rf "${cache:?}/$prefix"
  mv "$root" "$cache/$prefix"
}

# Where the shared libraries of a prefix are.
libraries() {
  local triple
  triple="$(uname -m)-linux-gnu"
  printf '%s/usr/lib/%s:%s/lib/%s' "$1" "$triple" "$1" "$triple"
}

proof() {
  local prefix program argument row
  for row in "${proofs[@]}"; do
    read -r prefix program argument <<<"$row"
    [ "$prefix" = "$1" ] || continue
    LD_LIBRARY_PATH=$(libraries "$2") "$2/$program" "$argument" >/dev/null 2>"$2/.error" ||
      die "$program of $prefix does not run here: $(tr '\n' ' ' <"$2/.error")"
    rm -f "$2/.error"
  done
}

# Fetches what is missing of `wanted`.
fetch_wanted() {
  look
  [ ${#missing[@]} -gt 0 ] || return 0
  local program row uri work
  for program in apt-get dpkg-deb flock; do
    command -v "$program" >/dev/null || die "no $program here: a Debian system is needed"
  done
  [ -r "$keyring" ] || die "$keyring is missing: install the package debian-archive-keyring"
  lock .lock
  look
  if [ ${#missing[@]} -gt 0 ]; then
    uri=$(mirror)
    [ -n "$uri" ] || die "apt on this machine knows no Debian archive (no suite such as bookworm in its sources)"
    # Whoever holds the lock owns what a killed run left behind.
    rm -rf "$cache"/.fetch.*
    work=$(mktemp -d "$cache/.fetch.XXXXXX")
    # shellcheck disable=SC2064  # the directory of now
    trap "rm -rf '$work'" EXIT
    private_apt "$work" "$uri" "${missing[@]}"
    say "reading the package lists"
    try apt-get -q=2 -c "$work/apt.conf" update || die "cannot read the package lists (apt-get update failed, see above)"
    for row in "${missing[@]}"; do fetch_row "$work" "$row"; done
    rm -rf "$work"
    trap - EXIT
  fi
  release_lock
}

# One line for each prefix, with the versions in it.
list_wanted() {
  local row prefix
  for row in "${wanted[@]}"; do
    read -r prefix _ <<<"$row"
    printf '%s\t%s\n' "$cache/$prefix" "$(paste -sd, "$cache/$prefix/.versions" | sed 's/,/, /g')"
  done
}
