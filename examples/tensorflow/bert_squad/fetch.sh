# What the two prepare scripts share: arguments, downloads that can be continued, and checks. Sourced, not run.

fail() { echo "error: $*" >&2; exit 1; }

# --output_dir=DIR or --output_dir DIR, and the same for --local.
read_arguments() {
  output_dir="" local_dir=""
  while [ $# -gt 0 ]; do
    case "$1" in
      --output_dir=*) output_dir="${1#*=}" ;;
      --output_dir) shift; output_dir="${1:-}" ;;
      --local=*) local_dir="${1#*=}" ;;
      --local) shift; local_dir="${1:-}" ;;
      -h|--help) echo "usage: $0 --output_dir DIR [--local DIR]"; exit 0 ;;
      *) fail "unknown argument '$1'. Expected --output_dir DIR and optionally --local DIR." ;;
    esac
    shift
  done
  [ -n "$output_dir" ] || fail "--output_dir is missing. Say where to put the files: $0 --output_dir=./data"
  [ -z "$local_dir" ] || [ -d "$local_dir" ] || fail "--local names '$local_dir', which is not a folder."
  mkdir -p "$output_dir"
}

# check_sha256 FILE SUM
check_sha256() {
  local found
  found="$(sha256sum "$1" | cut -d' ' -f1)"
  [ "$found" = "$2" ] || fail "$1 has the sha256 sum $found. Expected $2. Delete it and fetch it again."
}

# check_stated FILE HEADERS: the md5 sum that Google's storage states for its files.
# No sum of these two archives is published anywhere else, so the server's own statement is what a download is held against.
check_stated() {
  local stated found
  stated="$(tr -d '\r' < "$2" | sed -n 's/^x-goog-hash: *md5=//Ip' | tail -n 1)"
  [ -n "$stated" ] || { echo "note: the server states no md5 sum of $1; only the archive's own checks are made" >&2; return; }
  found="$(openssl dgst -md5 -binary "$1" | base64)"
  [ "$found" = "$stated" ] || fail "$1 has the md5 sum $found (base64), but the server states $stated. Delete it and fetch it again."
}

# download URL FILE: a cut connection goes on where it stopped; the file gets its name when it is whole.
download() {
  [ -f "$2" ] && { echo "$2 is there already"; return; }
  echo "fetching $1"
  curl --fail --location --retry 3 --continue-at - --dump-header "$2.headers" --output "$2.part" "$1" ||
    fail "$1 cannot be fetched. Fetch it on another machine, and give the folder that holds it as --local DIR."
  mv "$2.part" "$2"
}
