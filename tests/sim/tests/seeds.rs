//! A few seeds in the tests of every day; `roced-sim --seeds 10000` is the long run.

use roced_sim::{FRAMES, Table, run};

#[test]
fn no_rule_is_broken() {
    let mut table = Table::default();
    for seed in 0..400 {
        let outcome = run(seed, false);
        if let Some(violation) = outcome.violation {
            panic!("violation of {}: seed {seed}: {}", violation.checker, violation.text);
        }
        assert!(outcome.frames >= FRAMES && (2..=8).contains(&outcome.qps), "seed {seed} is a whole one");
        table.add(&outcome.table);
    }
    assert!(table.zeros().len() < 10, "operations meet faults: {:?}", table.zeros());
}

#[test]
fn a_seed_is_the_same_run_each_time() {
    let (first, second) = (run(7, false), run(7, false));
    assert_eq!((first.frames, first.qps), (second.frames, second.qps));
    assert_eq!(first.table.to_string(), second.table.to_string());
}
