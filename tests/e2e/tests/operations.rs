//! Every operation of every service, one test a cell of docs/operations.md, and that table itself.

use std::fs;

use anyhow::{Context as _, Result, ensure};

use crate::{
    Settings, TESTS,
    lab::{Host, Lab, SOON, repository},
    memory::introduce,
};

macro_rules! cells {
    ($($test:ident: $service:literal $operation:literal;)*) => {
        $(pub(crate) fn $test(settings: &Settings) -> Result<()> {
            run(settings, $service, $operation)
        })*
    };
}

cells! {
    rc_send: "rc" "send";
    rc_send_with_immediate: "rc" "send-imm";
    rc_write: "rc" "write";
    rc_write_with_immediate: "rc" "write-imm";
    rc_read: "rc" "read";
    rc_compare_and_swap: "rc" "compare-swap";
    rc_fetch_and_add: "rc" "fetch-add";
    rc_atomic_write: "rc" "atomic-write";
    rc_flush: "rc" "flush";
    uc_send: "uc" "send";
    uc_send_with_immediate: "uc" "send-imm";
    uc_write: "uc" "write";
    uc_write_with_immediate: "uc" "write-imm";
    ud_send: "ud" "send";
    ud_send_with_immediate: "ud" "send-imm";
}

fn run(settings: &Settings, service: &str, operation: &str) -> Result<()> {
    let lab = Lab::up(&[])?;
    let mut responder = lab.start(Host::B, settings.client, &["respond", service, operation])?;
    let mut requester = lab.start(Host::A, settings.client, &["request", service, operation])?;
    introduce(&mut requester, &mut responder)?;
    requester.expect("done", SOON)?;
    responder.say("look")?;
    responder.expect("right", SOON)
}

/// docs/operations.md names a test of ours for each operation that it calls supported; and it
/// forgets none of the tests above.
pub(crate) fn the_table_names_a_test_for_each_cell(_: &Settings) -> Result<()> {
    let path = repository().join("docs/operations.md");
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let named: Vec<&str> = text.split('`').skip(1).step_by(2).filter(|word| word.contains("::")).collect();
    for name in &named {
        ensure!(TESTS.iter().any(|(test, _)| test == name), "docs/operations.md names {name}, which is no test");
    }
    let forgotten = TESTS.iter().find(|(test, _)| {
        let is_cell = ["rc_", "uc_", "ud_"].iter().any(|service| test.starts_with(&format!("operations::{service}")));
        is_cell && !named.contains(test)
    });
    ensure!(forgotten.is_none(), "docs/operations.md does not name {}", forgotten.expect("some").0);
    let rows = text.lines().filter(|line| line.starts_with("| ")).skip(1);
    let mut count = 0;
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        ensure!(cells.len() == 5, "docs/operations.md: a row of {} cells: {row}", cells.len());
        for cell in &cells[1..4] {
            let is_named = cell.starts_with('`') && cell.contains("::");
            ensure!(is_named || ["no such operation", "not yet"].contains(cell), "docs/operations.md: '{cell}'");
            count += usize::from(is_named);
        }
    }
    ensure!(count > 10, "docs/operations.md has {count} cells");
    Ok(())
}
