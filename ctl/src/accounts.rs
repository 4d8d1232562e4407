//! `rocectl accounts`: objects of all programs of each user together, limits, refusals and delays.

use std::collections::BTreeMap;

use roced_report::{AccountReport, AccountsReport};

use crate::{
    table::{
        Column::{Number, Text},
        TableSection,
    },
    units::bytes,
};

/// The report as tables: one row for each resource that an account has or was refused, one for each
/// account with delays, and one for each with a highest rate.
pub(crate) fn render(report: &AccountsReport) -> String {
    let mut text = String::new();
    table(&report.accounts).append(&mut text, "none");
    delays(&report.accounts).append(&mut text, "none");
    if report.accounts.iter().any(|account| account.max_rate_mbit > 0) {
        rates(&report.accounts).append(&mut text, "none");
    }
    text
}

fn table(accounts: &[AccountReport]) -> TableSection {
    let columns = [Number("uid"), Text("resource"), Number("has"), Number("limit"), Number("refused")];
    let mut section = TableSection::new(format!("Accounts ({})", accounts.len()), &columns);
    for account in accounts {
        let amount = |of: &BTreeMap<String, u64>, key: &str| of.get(key).copied().unwrap_or(0);
        for (key, limit) in &account.limits {
            let (taken, refused) = (amount(&account.taken, key), amount(&account.refused, key));
            if taken > 0 || refused > 0 {
                let shown = |amount| if key.ends_with("_mib") { bytes(amount) } else { amount.to_string() };
                let limit = if *limit == u64::MAX { "share".to_owned() } else { shown(*limit) };
                let resource = key.trim_end_matches("_mib").replace('_', " ");
                section.row([account.uid.to_string(), resource, shown(taken), limit, refused.to_string()]);
            }
        }
    }
    section
}

fn delays(accounts: &[AccountReport]) -> TableSection {
    let columns =
        [Number("uid"), Number("calls/s"), Number("delayed calls"), Number("slow wakes"), Number("delayed neighbors")];
    let is_delayed = |it: &&AccountReport| it.delayed_calls > 0 || it.slow_wakes > 0 || it.delayed_neighbors > 0;
    let delayed: Vec<_> = accounts.iter().filter(is_delayed).collect();
    let mut section = TableSection::new(format!("Delays ({})", delayed.len()), &columns);
    for account in delayed {
        let AccountReport { uid, control_calls_per_second, delayed_calls, slow_wakes, delayed_neighbors, .. } = account;
        let rate = u64::from(*control_calls_per_second);
        section.row([u64::from(*uid), rate, *delayed_calls, *slow_wakes, *delayed_neighbors].map(|it| it.to_string()));
    }
    section
}

fn rates(accounts: &[AccountReport]) -> TableSection {
    let limited: Vec<_> = accounts.iter().filter(|account| account.max_rate_mbit > 0).collect();
    let columns = [Number("uid"), Number("Mbit/s at most"), Number("delayed turns")];
    let mut section = TableSection::new(format!("Rates ({})", limited.len()), &columns);
    for account in limited {
        let rate = u64::from(account.max_rate_mbit);
        section.row([u64::from(account.uid), rate, account.delayed_turns].map(|it| it.to_string()));
    }
    section
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_that_an_account_has_or_was_refused_have_a_row() {
        let amounts = |all: &[(&str, u64)]| all.iter().map(|(key, amount)| ((*key).to_owned(), *amount)).collect();
        let account = AccountReport {
            uid: 1000,
            taken: amounts(&[("qps", 3), ("memory_mib", 2 << 20), ("cqs", 0), ("mrs", 0)]),
            limits: amounts(&[("qps", u64::MAX), ("memory_mib", 1 << 30), ("cqs", 7), ("mrs", 9)]),
            refused: amounts(&[("qps", 1), ("cqs", 5)]),
            control_calls_per_second: 50_000,
            delayed_calls: 12,
            max_rate_mbit: 2500,
            delayed_turns: 77,
            slow_wakes: 3,
            delayed_neighbors: 4,
        };
        let text = render(&AccountsReport { accounts: vec![account] });
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert!(rows.contains(&vec!["1000", "qps", "3", "share", "1"]), "{text}");
        assert!(rows.contains(&vec!["1000", "cqs", "0", "7", "5"]), "{text}");
        assert!(rows.contains(&vec!["1000", "50000", "12", "3", "4"]), "{text}");
        assert!(rows.contains(&vec!["1000", "2500", "77"]), "{text}");
        assert!(text.contains("memory") && !text.contains("mrs"), "{text}");
        assert!(render(&AccountsReport { accounts: Vec::new() }).contains("none"));
    }
}
