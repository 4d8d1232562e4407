//! The scripts and the workflow that every change passes, line by line: a line that is left out, or
//! one more that ends a script early, turns checks off and would not be missed.
//!
//! A change of one of them is made here as well. Comments, empty lines and versions of actions are
//! free.

use std::{fs, path::Path};

use anyhow::{Context, Result};

/// Files with all of their lines.
const WHOLE: [(&str, &str); 4] =
    [(".ci/run", RUN), ("scripts/check", CHECK), ("scripts/test", TEST), (".github/workflows/ci.yml", WORKFLOW)];

const RUN: &str = r##"#!/bin/bash
set -euo pipefail
cd "$(dirname "$0")/.."
started=$SECONDS
scripts/setup
scripts/check
scripts/test
printf '\nci: check and test passed in %d s\n' $((SECONDS - started))"##;

const CHECK: &str = r##"#!/bin/bash
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."
usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' scripts/check; }
wrong() { printf 'check: %s: scripts/check --help\n' "$*" >&2; exit 2; }
(($# == 0)) || [[ -n $1 ]] || wrong "the argument '' is empty"
case ${1-} in
  '') ;;
  --help | -h) usage; exit 0 ;;
  *) wrong "'$1' is unknown" ;;
esac
(($# <= 1)) || wrong "'$2' is unknown"
step() { printf '\n== %s\n' "$*"; "$@"; }
skip() { printf '\n== skipped: %s\n' "$*"; }
mapfile -t replaced < <(compgen -e | grep -E '^CARGO_TARGET_.*_RUNNER$')
mapfile -t settings < <(find -L . -path ./target -prune -o -path '*/.cargo/config*' -type f -print)
((${#settings[@]} == 0)) || mapfile -t -O ${#replaced[@]} replaced < <(grep -lE 'runner|alias|include|rust|linker|[\\]' "${settings[@]}")
((${#replaced[@]} == 0)) || { printf 'check: %s makes cargo run another program: unset or remove it\n' "${replaced[@]}" >&2; exit 1; }
step cargo fmt --all --check
step cargo clippy --workspace --all-targets --locked -- -D warnings
step cargo run --quiet --locked -p roced-structure
step env RUSTDOCFLAGS=-Dwarnings cargo doc --workspace --no-deps --locked --quiet
if cargo deny --version >/dev/null 2>&1; then
  step cargo deny check licenses sources bans
else
  skip "licenses and sources of the dependencies: cargo-deny is not installed (cargo install --locked cargo-deny)"
fi
mapfile -t scripts < <(grep -rlE '^#!(/usr)?/bin/(env )?(ba)?sh$' scripts .ci tests packaging --include='*' --exclude-dir=target --exclude-dir=stage)
if command -v shellcheck >/dev/null; then
  step shellcheck "${scripts[@]}"
else
  skip "lints of ${#scripts[@]} shell scripts: shellcheck is not installed (scripts/setup installs it)"
fi
check_the_unit() {
  systemd-analyze security --offline=true --threshold=19 --no-pager config/roced.service | tail -1
}
if systemd-analyze --version 2>/dev/null | awk 'NR == 1 { exit !($2 >= 250) }'; then
  step check_the_unit
else
  skip "exposure of the unit: systemd-analyze is not installed, or older than 250 (scripts/setup installs it)"
fi
step .ci/usage-test
step .ci/belongings-test
step .ci/packages-test
step .ci/subjects-test
step .ci/subjects
for mutant in {tests/sim,cm,tests/fabric}/mutants/*.patch; do
  git apply --check "$mutant" || { printf '\ncheck: %s no longer applies: move it along with the lines that it changes\n' "$mutant" >&2; exit 1; }
done
printf '\ncheck: all good\n'"##;

const TEST: &str = r##"#!/bin/bash
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."
usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' scripts/test; }
wrong() { printf 'test: %s: scripts/test --help\n' "$*" >&2; exit 2; }
full='' guests=1
(($# == 0)) || [[ -n $1 ]] || wrong "the argument '' is empty"
case $* in
  '') ;;
  --full) full=1 ;;
  '--full --no-guests') full=1 guests='' ;;
  --help | -h) usage; exit 0 ;;
  *) wrong "'$*' is unknown" ;;
esac
miri() {
  local toolchain=${MIRI:-nightly}
  if ! rustup component add --toolchain "$toolchain" miri rust-src >/dev/null 2>&1; then
    echo "SKIPPED: Miri: no toolchain '$toolchain' with it (rustup toolchain install $toolchain --component miri,rust-src)"
    return
  fi
  local folder=${CARGO_TARGET_DIR:-target}/miri
  CARGO_TARGET_DIR=$folder MIRIFLAGS="-Zmiri-disable-isolation" \
    cargo "+$toolchain" miri test --quiet --locked -p roced-abi --lib --test hostile_rings
  CARGO_TARGET_DIR=$folder MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-disable-weak-memory-emulation" \
    cargo "+$toolchain" miri test --quiet --locked -p roced-memory --lib -- copies:: quota::
}
step() { printf '\n== %s\n' "$*"; "$@"; }
step cargo test --workspace --exclude roced-e2e --locked
step scripts/version-map
step env ROCED_FULL=${full:-0} cargo test -p roced-e2e --locked
step scripts/pieces
if [[ -n $full ]]; then
  step env RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/loom" \
    cargo test -p roced-abi --release --locked
  step miri
  step scripts/fuzz all --seconds 5
  step scripts/interop
  if ((EUID == 0)); then
    step scripts/third-party
    step scripts/containers
    if [[ -n $guests ]]; then step scripts/guests --all; fi
  else
    echo "SKIPPED: scripts/third-party, scripts/containers and scripts/guests: need root"
  fi
else
  step scripts/interop --short
  if ((EUID == 0)); then step scripts/guests --short; else echo "SKIPPED: scripts/guests: needs root"; fi
fi"##;

const WORKFLOW: &str = r##"name: ci
on:
  push:
    branches: [main]
  pull_request:
permissions:
  contents: read
concurrency:
  group: ci-${{ github.ref }}
  cancel-in-progress: ${{ github.event_name == 'pull_request' }}
jobs:
  run:
    runs-on: ubuntu-24.04
    timeout-minutes: 120
    container:
      image: debian:12
      options: --privileged --init --ulimit memlock=-1:-1 --ulimit nofile=1048576:1048576 --shm-size 1g
    defaults:
      run:
        shell: bash
    steps:
      - run: apt-get update -q && apt-get install -y -q --no-install-recommends git ca-certificates curl procps
      - uses: actions/checkout
        with:
          fetch-depth: 0 # .ci/subjects reads the commits of the pull request or the push
      - uses: ./.github/actions/prepare
      - uses: actions/cache
        with:
          path: |
            ~/.cargo/registry
            target
          key: ci-${{ hashFiles('rust-toolchain.toml', 'Cargo.lock') }}-${{ github.sha }}
          restore-keys: ci-${{ hashFiles('rust-toolchain.toml', 'Cargo.lock') }}-
      - run: .ci/run
        env:
          COMMITS_BASE: ${{ github.event.pull_request.base.sha || github.event.before }}
          COMMITS_HEAD: ${{ github.event.pull_request.head.sha || github.sha }}
      - uses: actions/upload-artifact
        if: failure()
        with:
          name: interop
          path: target/interop/last
          if-no-files-found: ignore"##;

/// Files of `.ci/`, with their lines that end a script or leave a failure out.
const ENDINGS: [(&str, &str); 5] = [
    (".ci/usage-test", USAGE_TEST),
    (".ci/belongings-test", BELONGINGS_TEST),
    (".ci/packages-test", PACKAGES_TEST),
    (".ci/subjects-test", SUBJECTS_TEST),
    (".ci/subjects", SUBJECTS),
];

const USAGE_TEST: &str = r##"printf '#!/bin/sh\necho "$@"\ncase $* in *nosuch*) exit 1 ;; esac\n' >"$folder/target/debug/roced-interop"
exit $failed"##;

const BELONGINGS_TEST: &str = r##"exit 0
trap '((${#others[@]} == 0)) || kill "${others[@]}" 2>/dev/null || true; rm -rf "$folder"' EXIT
stub "$folder/target/release/roced" <<<'exit 1'
stub "$folder/target/release/roced-lab" <<<'exit 0'
stub "$folder/target/release/rocectl" <<<"[[ ! -e $folder/up ]] || xargs kill -KILL <$folder/up; exit 1"
ip netns del $space 2>/dev/null || true
stub "$folder/target/release/roced" <<<'exit 1'
for program in apt-get cargo mountpoint podman mmdebstrap useradd userdel groupadd groupdel; do stub "$folder/bin/$program" <<<'exit 1'; done
stub "$folder/target/tools/prometheus/usr/bin/promtool" <<<'exit 0'
stub "$work/scripts/setup" <<<'exit 0'
[[ $1 == install ]] || exit 0
[[ $2 != --version ]] || exit 0
for program in objcopy strip lintian; do stub "$folder/bin/$program" <<<'exit 0'; done
stub "$folder/bin/$program" <<<"echo $program >>$folder/mark; exit 1"
exit $failed"##;

const PACKAGES_TEST: &str = r##"exit 0
exit $failed"##;

const SUBJECTS_TEST: &str = r##"exit 1"##;

const SUBJECTS: &str = r##"exit 0
exit 1
exit $wrong"##;

/// The first command of a script: a step that fails ends it.
const FIRST: &str = "set -euo pipefail";

/// Lines that differ.
///
/// # Errors
///
/// A file cannot be read.
pub(crate) fn differences(workspace: &Path) -> Result<Vec<String>> {
    let read = |file: &str| fs::read_to_string(workspace.join(file)).with_context(|| file.to_owned());
    let mut broken = Vec::new();
    for (file, lines) in WHOLE {
        broken.extend(difference(file, &significant(&read(file)?), lines));
    }
    for (file, lines) in ENDINGS {
        let text = read(file)?;
        let found = significant(&text);
        if found.get(1).is_none_or(|line| *line != FIRST) {
            broken.push(format!("{file}: the first command is not '{FIRST}'"));
        }
        let endings: Vec<&str> = found.iter().map(|line| line.trim()).filter(|line| is_ending(line)).collect();
        broken.extend(difference(file, &endings, lines));
    }
    Ok(broken)
}

/// The first line that differs.
fn difference(file: &str, found: &[&str], lines: &str) -> Option<String> {
    let wanted: Vec<&str> = lines.lines().collect();
    let at = (0..found.len().max(wanted.len())).find(|&at| found.get(at) != wanted.get(at))?;
    let text = |lines: &[&str]| lines.get(at).map_or("the end".to_owned(), |line| format!("'{}'", line.trim()));
    let (found, wanted) = (text(found), text(&wanted));
    Some(format!("{file}: {found} stands where tests/structure/src/verbatim.rs has {wanted}"))
}

/// Lines of a file, without its comments and the versions of actions.
fn significant(text: &str) -> Vec<&str> {
    let is_comment = |line: &str| line.starts_with('#') && !line.starts_with("#!");
    let lines = text.lines().filter(|line| !line.trim().is_empty() && !is_comment(line.trim_start()));
    let version = |line: &&str| line.contains("uses: ");
    lines.map(|line| line.split('@').next().filter(|_| version(&line)).unwrap_or(line).trim_end()).collect()
}

/// Whether a line may end a script, or leaves a failure out.
fn is_ending(line: &str) -> bool {
    let is_of_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let is_exit = |(at, word): (usize, &str)| {
        let after = &line[at + word.len()..];
        !line[..at].ends_with(is_of_name) && !after.starts_with(is_of_name) && !after.starts_with(" code")
    };
    ["|| true", "|| :", "set +"].iter().any(|text| line.contains(text)) || line.match_indices("exit").any(is_exit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_that_differs_is_named() {
        let text = "#!/bin/bash\n# text\n\nset -e\n  step a\n      - uses: x/y@v5\n";
        let found = significant(text);
        assert_eq!(found, ["#!/bin/bash", "set -e", "  step a", "      - uses: x/y"]);
        assert_eq!(difference("f", &found, "#!/bin/bash\nset -e\n  step a\n      - uses: x/y"), None);
        let gone = difference("f", &found, "#!/bin/bash\nset -e\n  step b").expect("one differs");
        assert!(gone.starts_with("f: 'step a' stands where") && gone.ends_with("'step b'"), "{gone}");
        let added = difference("f", &found, "#!/bin/bash\nset -e\n  step a").expect("one more");
        assert!(added.starts_with("f: '- uses: x/y' stands") && added.ends_with("the end"), "{added}");
        let short = difference("f", &found[..1], "#!/bin/bash\nset -e").expect("one less");
        assert!(short.starts_with("f: the end stands") && short.ends_with("'set -e'"), "{short}");
    }

    #[test]
    fn lines_that_end_a_script_are_found() {
        for ending in ["exit 0", "exit", "x || true", "x || :", "set +e", "trap 'exit 0' EXIT", "[[ x ]] && exit 1"] {
            assert!(is_ending(ending), "{ending}");
        }
        for line in ["echo 'exit code 1'", "trap x EXIT", "last_exit=1", "exits=2", "x || complain"] {
            assert!(!is_ending(line), "{line}");
        }
    }

    #[test]
    fn files_of_the_repository_have_these_lines() {
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        assert_eq!(differences(&workspace).expect("read"), [""; 0]);
    }
}
