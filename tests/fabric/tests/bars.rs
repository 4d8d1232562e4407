//! The short form in the tests of every day; `scripts/fabric` runs all cases with five seeds.

use roced_fabric::{cases, execute, runs};

#[test]
fn bars_of_the_short_form_are_met() {
    let report = execute(&[], true, 1, &|| ());
    assert!(report.violations.is_empty(), "{:?}", report.violations);
    let missed: Vec<_> = report.bars.iter().filter(|bar| !bar.met).collect();
    assert!(missed.is_empty(), "{missed:?}");
    for case in [
        "incast 16:",
        "incast 16 off",
        "incast 64",
        "READ incast",
        "2-4-2",
        "pauses",
        "pauses of workers",
        "storm",
        "ring",
        "ETS",
    ] {
        assert!(report.bars.iter().any(|bar| bar.name.starts_with(case)), "{case}");
    }
}

#[test]
fn a_seed_gives_the_same_run_again() {
    let only = ["incast 16".to_owned()];
    let figures = || {
        let report = execute(&only, true, 1, &|| ());
        report
            .runs
            .iter()
            .map(|run| (run.name.clone(), run.frames, run.events, run.marks, run.drops))
            .collect::<Vec<_>>()
    };
    let first = figures();
    assert!(first.len() == 3 && first == figures(), "{first:?}");
}

/// --only separates words by commas.
#[test]
fn no_name_of_a_case_has_a_comma() {
    assert!(cases(&[], false).iter().all(|(name, ..)| !name.contains(',')));
}

#[test]
fn words_choose_cases() {
    assert_eq!((runs(&["ETS 70".to_owned()], false, 5), runs(&["no such case".to_owned()], false, 5)), (5, 0));
    assert!(runs(&[], true, 1) < runs(&[], false, 1));
}
