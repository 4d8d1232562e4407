//! Names that documents quote as code: keys of the config, metrics, counters, symbols, options of
//! scripts, and packages, targets and tests of `cargo` commands, also those in blocks.
//!
//! A name with an underscore is that of something if a word of some source, script or setting, or
//! the name of a file, is equal. CHANGELOG.md names the past.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use toml::Value;

use crate::{crates::Member, documents::EXTENSIONS, files::files_below, lists::CONFIG, script_options::Scripts};

/// A document of the past.
pub(crate) const HISTORY: &str = "CHANGELOG.md";

/// Folder of these rules: names in its tests are of nothing.
const OWN: &str = "tests/structure";

/// Names of the kernel, of drivers and of other projects, and examples of names in CONVENTIONS.md.
const ELSEWHERE: [&str; 22] = [
    "__napi_schedule",
    "ack_timeout_ns",
    "cgroup_skb",
    "enable_roce",
    "gro_flush_timeout",
    "init_on_alloc",
    "mlnx_qos",
    "napi_defer_hard_irqs",
    "process_vm_writev",
    "rate_packets_per_s",
    "rxe_opcode",
    "sched_switch",
    "shmem_enabled",
    "smp_affinity_list",
    "sock_def_readable",
    "sock_wfree",
    "sys_enter_sendto",
    "sys_exit_sendto",
    "test_resize_cq",
    "transparent_hugepage",
    "unprivileged_userfaultfd",
    "max_map_count",
];

/// Settings of the kernel that begin as a section of the config does.
const SYSCTLS: [&str; 3] = ["net.core.", "net.ipv4.", "net.ipv6."];

/// Options of `cargo` with a target, and the folder of these targets in a package.
const TARGETS: [(&str, &str); 3] = [("test", "tests"), ("bench", "benches"), ("example", "examples")];

/// Names of the workspace that a document may quote.
struct Known {
    words: BTreeSet<String>,
    scripts: Scripts,
    /// Keys by section, such as `limits.client`.
    config: BTreeMap<String, BTreeSet<String>>,
    /// Names of packages, with their folders.
    packages: BTreeMap<String, String>,
    /// Targets as (option, folder of the package, name).
    targets: BTreeSet<(&'static str, String, String)>,
}

/// Quoted names that are of nothing.
///
/// # Errors
///
/// A file cannot be read, or the config has no keys.
pub(crate) fn unknown(workspace: &Path, members: &[Member]) -> Result<Vec<String>> {
    let files = files_below(workspace)?;
    let known = Known::read(workspace, &files, members)?;
    let is_document = |file: &&PathBuf| file.extension().is_some_and(|it| it == "md") && *file != Path::new(HISTORY);
    let mut broken = Vec::new();
    for document in files.iter().filter(is_document) {
        let text = fs::read_to_string(workspace.join(document)).with_context(|| document.display().to_string())?;
        let faults = known.faults(&text).into_iter();
        broken.extend(faults.map(|(line, fault)| format!("{}:{line}: {fault}", document.display())));
    }
    Ok(broken)
}

impl Known {
    fn read(workspace: &Path, files: &BTreeSet<PathBuf>, members: &[Member]) -> Result<Self> {
        let mut words = BTreeSet::new();
        for file in files.iter().filter(|file| !file.starts_with(OWN)) {
            let names = file.iter().filter_map(|part| part.to_str()?.split('.').next());
            words.extend(names.map(|name| name.replace('-', "_")));
            if file.extension().is_some_and(|it| it == "md" || it == "patch") {
                continue;
            }
            let Ok(text) = String::from_utf8(fs::read(workspace.join(file))?) else { continue };
            words.extend(identifiers(&text).map(str::to_owned));
            words.extend(text.split("--").skip(1).map(|rest| option_of(rest).replace('-', "_")));
        }
        let config = config_keys(&fs::read_to_string(workspace.join(CONFIG)).context(CONFIG)?);
        ensure!(config.len() > 5, "{CONFIG} has few sections");
        let packages = members.iter().map(|member| (member.name().to_owned(), member.folder.clone())).collect();
        let targets = members.iter().flat_map(|member| targets(member, files)).collect();
        Ok(Self { words, scripts: Scripts::read(workspace)?, config, packages, targets })
    }

    /// Faults of a document, each with its line.
    fn faults(&self, text: &str) -> Vec<(usize, String)> {
        let mut faults = Vec::new();
        let mut is_fenced = false;
        for (at, line) in text.lines().enumerate() {
            let mut add = |fault| faults.push((at + 1, fault));
            if line.trim_start().starts_with("```") {
                is_fenced = !is_fenced;
            } else if is_fenced || line.starts_with("    ") && !line.contains('`') {
                self.check_command(line, &mut add);
            } else {
                for quoted in line.split('`').skip(1).step_by(2) {
                    self.check_command(quoted, &mut add);
                    self.check_names(quoted, &mut add);
                }
            }
        }
        faults
    }

    fn check_names(&self, quoted: &str, add: &mut impl FnMut(String)) {
        let is_command = quoted.split_whitespace().any(|word| word == "cargo");
        for name in identifiers(quoted).filter(|name| is_of_workspace(name)) {
            // A metric is a counter with a prefix, and a command has beginnings of names of tests.
            let counter = name.strip_prefix("roced_").map(|name| name.strip_suffix("_total").unwrap_or(name));
            let is_known = [Some(name), counter].into_iter().flatten().any(|name| self.words.contains(name));
            if !is_known && !((is_command || name.ends_with('_')) && self.has_beginning(name)) {
                add(format!("there is no {name}"));
            }
        }
        let is_of_path = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || "._".contains(letter);
        for path in quoted.split(|letter: char| !is_of_path(letter)).map(|path| path.trim_matches('.')) {
            let Some((section, key)) = path.rsplit_once('.') else { continue };
            let top = path.split('.').next().unwrap_or(path);
            let is_file = EXTENSIONS.iter().any(|extension| path.ends_with(extension)) || path.ends_with(".sock");
            let is_elsewhere = is_file || SYSCTLS.iter().any(|beginning| path.starts_with(beginning));
            if is_elsewhere || !self.config.contains_key(top) || self.config.contains_key(path) {
                continue;
            }
            if !self.config.get(section).is_some_and(|keys| keys.contains(key)) {
                add(format!("{CONFIG} has no {path}"));
            }
        }
    }

    fn has_beginning(&self, name: &str) -> bool {
        self.words.range(name.to_owned()..).next().is_some_and(|word| word.starts_with(name))
    }

    /// Packages, targets and tests of a `cargo` command, and options of a script.
    fn check_command(&self, command: &str, add: &mut impl FnMut(String)) {
        let words: Vec<&str> = command.split_whitespace().take_while(|word| !word.starts_with('#')).collect();
        let Some(begin) = words.iter().position(|word| *word == "cargo") else {
            self.scripts.faults(&words).into_iter().for_each(add);
            return;
        };
        let mut folder = None;
        for pair in words[begin..].windows(2) {
            let [option, value] = pair else { continue };
            let is_placeholder = !value.starts_with(|letter: char| letter.is_ascii_lowercase());
            match (*option, option.strip_prefix("--")) {
                _ if is_placeholder => {}
                ("-p" | "--package", _) => match self.packages.get(*value) {
                    Some(found) => folder = Some(found),
                    None => add(format!("there is no package {value}")),
                },
                (_, Some(kind)) if TARGETS.iter().any(|(name, _)| *name == kind) => {
                    let is_target = |target: &&(&str, String, String)| {
                        target.0 == kind && target.2 == *value && folder.is_none_or(|folder| target.1 == *folder)
                    };
                    if !self.targets.iter().any(|target| is_target(&target)) {
                        add(format!("there is no {kind} {value}"));
                    }
                }
                _ => {}
            }
        }
        for path in words[begin..].iter().filter(|word| word.contains("::")) {
            let lost = path.split("::").find(|name| !name.is_empty() && !self.has_beginning(name));
            if let Some(lost) = lost {
                add(format!("there is no {lost} of {path}"));
            }
        }
    }
}

/// Whether a name is like one of the workspace: with an underscore, no constant of a system, no
/// placeholder, and no row of measurements such as `read_4k`.
fn is_of_workspace(name: &str) -> bool {
    let parts: Vec<&str> = name.split('_').collect();
    let is_upper = |part: &str| part.len() > 2 && part.chars().all(|letter| letter.is_ascii_uppercase());
    let has_upper = parts.iter().any(|part| is_upper(part)) && !name.starts_with("ROCED_");
    let is_row = parts.get(1).is_some_and(|part| part.starts_with(|letter: char| letter.is_ascii_digit()));
    name.trim_matches('_').contains('_') && !has_upper && !is_row && !ELSEWHERE.contains(&name)
}

fn identifiers(text: &str) -> impl Iterator<Item = &str> {
    text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_').filter(|word| !word.is_empty())
}

/// The name of an option at the beginning of a text.
fn option_of(text: &str) -> &str {
    text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '-').next().unwrap_or(text)
}

/// Keys of each section, those in comments included.
pub(crate) fn config_keys(text: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut keys: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut section = String::new();
    for line in text.lines().map(|line| line.trim_start_matches('#')) {
        let name = line.split('#').next().unwrap_or("").trim();
        let header = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        if let Some(header) = header {
            section = header.trim_matches(['[', ']']).to_owned();
            keys.entry(section.clone()).or_default();
        } else if let Some((key, _)) = line.split_once(" = ")
            && identifiers(key).eq([key])
        {
            keys.entry(section.clone()).or_default().insert(key.to_owned());
        }
    }
    keys
}

/// Targets of a package, by files and by its manifest.
fn targets(member: &Member, files: &BTreeSet<PathBuf>) -> Vec<(&'static str, String, String)> {
    let mut found = Vec::new();
    for (kind, folder) in TARGETS {
        let folder = Path::new(&member.folder).join(folder);
        let below = files.iter().filter_map(|file| file.strip_prefix(&folder).ok());
        let names = below.filter_map(|file| {
            let is_file = file.components().count() == 1 && file.extension().is_some_and(|it| it == "rs");
            let name = if is_file { file.file_stem() } else { file.parent()?.file_name() };
            name.filter(|_| is_file || file.ends_with("main.rs")).map(|name| name.to_string_lossy().into_owned())
        });
        let declared = member.manifest.get(kind).and_then(Value::as_array).into_iter().flatten();
        let declared = declared.filter_map(|target| Some(target.get("name")?.as_str()?.to_owned()));
        found.extend(names.chain(declared).map(|name| (kind, member.folder.clone(), name)));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(text: &str) -> Vec<String> {
        let member =
            |folder: &str, manifest: &str| Member { folder: folder.into(), manifest: manifest.parse().expect("valid") };
        let members = [
            member("a", "[package]\nname = \"roced-a\"\n[[test]]\nname = \"own\"\n"),
            member("b", "[package]\nname = \"roced-b\"\n"),
        ];
        let files = ["a/tests/one.rs", "b/tests/two/main.rs", "b/benches/engine.rs"].map(PathBuf::from).into();
        let config = "[log]\nlevel = \"info\"\n[limits.client]\n#memory_mib = 1 # or = 2\n# text = no\n#[[access]]\n";
        let words = ["lost_frames", "memory_mib", "a_lost_middle_is_sent", "recovery", "no_guests", "up_seconds"];
        let known = Known {
            words: words.map(str::to_owned).into(),
            scripts: Scripts::of("scripts/test", "#!/bin/bash\n# scripts/test [--no-guests]\nset -e\n"),
            config: config_keys(config),
            packages: members.iter().map(|member| (member.name().to_owned(), member.folder.clone())).collect(),
            targets: members.iter().flat_map(|member| targets(member, &files)).collect(),
        };
        known.faults(text).into_iter().map(|(line, fault)| format!("{line}: {fault}")).collect()
    }

    #[test]
    fn counters_metrics_and_symbols_that_are_gone_are_found() {
        let right = "`lost_frames` `roced_lost_frames_total` `roced_up_seconds` `lost_...` `drop_REASON` `IBV_WC_X`\n\
                     gone_word `read_4k` `gone` `sched_switch`\n```\ngone_too\n```\n";
        assert_eq!(faults(right), [""; 0]);
        let wrong = "`lost_frame` `roced_lost_total`\n`ROCED_GONE`";
        assert_eq!(
            faults(wrong),
            ["1: there is no lost_frame", "1: there is no roced_lost_total", "2: there is no ROCED_GONE"]
        );
    }

    #[test]
    fn keys_that_the_config_does_not_have_are_found() {
        let right =
            "`log.level` `limits.client.memory_mib = 5` `[limits.client]` `log.rs` `vm.other` log.gone `x.log.y`";
        assert_eq!(faults(right), [""; 0]);
        let wrong = ["1: config/roced.toml has no log.gone", "2: config/roced.toml has no log.text"];
        assert_eq!(faults("`log.gone = 1`\n`[log.text]`"), wrong);
    }

    #[test]
    fn packages_targets_and_tests_that_are_gone_are_found() {
        let right = "`cargo test -p roced-a --test one` `cargo bench -p roced-b --bench engine -- x`\n```\n\
                     cargo test -p roced-b --test two recovery::a_lost_middle # --test x\n```\n\
                     `cargo test --test own` `cargo test -p NAME --test TARGET` `scripts/test --no-guests`";
        assert_eq!(faults(right), [""; 0]);
        let wrong = "`cargo test -p roced-c`\n```\ncargo test -p roced-a --test two\ncargo test recovery::gone_x\n```\n\
                     `scripts/test --with-guests`\n    cargo test -p roced-d\n    scripts/test --gone # x\n    text of `scripts/test`";
        let broken = [
            "1: there is no package roced-c",
            "3: there is no test two",
            "4: there is no gone_x of recovery::gone_x",
            "6: scripts/test has no option --with-guests",
            "7: there is no package roced-d",
            "8: scripts/test has no option --gone",
        ];
        assert_eq!(faults(wrong), broken);
    }
}
