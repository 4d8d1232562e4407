//! How scenarios ended: a line while they run, a table when they have.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::Path,
    time::Duration,
};

use anyhow::Result;
use comfy_table::{Table, presets::ASCII_MARKDOWN};

use crate::{
    check::{congestion::Marks, last_ack::lost_with_its_sender},
    compare::{Difference, compare},
    document::DIFFERENCES,
    scenario::{Network, Run, Scenario, Side},
    told::{Counted, Told},
    verify::{self, Verdict},
};

/// With as many marks to be expected, one at least is certain.
const MARKS_MIN: f64 = 20.0;
/// Lines that are printed of errors.
const LINES_MAX: usize = 40;

/// How a scenario ended.
pub(crate) struct Outcome {
    scenario: Scenario,
    took: Duration,
    /// Errors.
    errors: Vec<String>,
    /// Why it is right all the same that an end gave up.
    last_ack: Vec<String>,
    told: Told,
    verdict: Verdict,
}

impl Outcome {
    /// Of the run and its captures in `folder`. `ecn`: roced's packets may be marked; `mended`: the
    /// guest had to be booted again.
    pub(crate) fn new(
        scenario: Scenario,
        ecn: bool,
        took: Duration,
        ended: Result<Told>,
        mended: bool,
        folder: &Path,
    ) -> Self {
        let mut errors = Vec::new();
        if mended {
            errors.push("the guest no longer answered".to_owned());
        }
        let (told, is_told) = match ended {
            Ok(told) => (told, true),
            Err(error) => {
                errors.push(format!("{error:#}"));
                (Told::default(), false)
            }
        };
        let mut verdict = Verdict::default();
        let is_compared = scenario.run == Run::Ends("operations");
        match verify::verify(scenario.path_mtu(), folder, ecn) {
            Ok(found) => verdict = found,
            // Where nothing was run, there may be nothing to see.
            Err(error) if is_told => errors.push(format!("{error:#}")),
            Err(_) => (),
        }
        let mut last_ack = Vec::new();
        if let Some(parting) = &told.parting {
            match lost_with_its_sender(&verdict.ports, scenario.path_mtu(), parting) {
                Ok(evidence) => last_ack = evidence,
                Err(why) => errors.push(format!(
                    "{} gave up, and not for want of a last ACK that was lost: {why}\nclient: {}\nserver: {}",
                    parting.left_behind, told.client, told.server
                )),
            }
        }
        if !is_compared {
            // They are many.
            verdict.ports = Default::default();
        }
        if is_told {
            errors.extend(wrong_in_captures(&scenario, &told, &verdict));
            errors.extend(wrong_marks(&scenario, &told, verdict.marks, ecn));
        }
        Self { scenario, took, errors, last_ack, told, verdict }
    }

    pub(crate) fn is_good(&self) -> bool {
        self.errors.is_empty()
    }

    fn word(&self) -> &'static str {
        match (self.is_good(), self.last_ack.is_empty()) {
            (false, _) => "FAILED",
            (true, true) => "ok",
            (true, false) => "ok, last ACK lost",
        }
    }

    /// Deviations: rules that rxe broke, and known ones of either side; and marks.
    fn otherwise(&self) -> String {
        let rules = self.verdict.theirs.iter().map(|(rule, (count, _))| format!("{rule} {count}"));
        let quirks = self.told.quirks.iter().map(|quirk| format!("{} as known", quirk.of));
        let counts = [("marked", self.told.marked), ("CNPs", self.verdict.marks[0].notifications as u64)];
        let marks = counts.into_iter().filter(|(_, count)| *count > 0).map(|(name, count)| format!("{name} {count}"));
        rules.chain(quirks).chain(marks).collect::<Vec<_>>().join(", ")
    }
}

/// Forbidden findings, regardless of the output of both ends.
fn wrong_in_captures(scenario: &Scenario, told: &Told, verdict: &Verdict) -> Vec<String> {
    let mut wrong = verdict.ours.clone();
    for side in Side::BOTH {
        if scenario.speaks(side) && verdict.sent[side as usize] == 0 {
            wrong.push(format!("no frame of {side} was captured"));
        }
    }
    if verdict.unrelated > 0 {
        wrong.push(format!("{} frames are of connections that cannot be told apart, and unchecked", verdict.unrelated));
    }
    let corrupted = told.harmed[2];
    if verdict.damaged as u64 > corrupted {
        wrong.push(format!("{} frames were damaged, and {corrupted} were corrupted on purpose", verdict.damaged));
    }
    wrong
}

/// Forbidden findings about marks of congestion and notifications of them, beside the rules.
fn wrong_marks(scenario: &Scenario, told: &Told, marks: [Marks; 2], ecn: bool) -> Vec<String> {
    let mut wrong = Vec::new();
    let [ours, theirs] = marks;
    if scenario.speaks(Side::Rxe) && scenario.marks_rxe(ecn) != (theirs.allowed > 0) {
        wrong.push(format!("{} packets of rxe may be marked", theirs.allowed));
    }
    let expected = scenario.marked_share(ecn) * (ours.allowed + theirs.allowed) as f64;
    if expected >= MARKS_MIN && told.marked == 0 {
        wrong.push(format!("no packet was marked, where {expected:.0} were to be expected"));
    }
    if theirs.notifications > 0 {
        wrong.push(format!("rxe, which has no such thing, sent {} CNPs", theirs.notifications));
    }
    if scenario.is_marked() && (ours.arrived == 0 || theirs.notified == 0) {
        wrong.push(format!("{} marked packets came to roced, and {} CNPs to rxe", ours.arrived, theirs.notified));
    }
    if let Some(Counted { notifications, packets }) = told.counted {
        if notifications != ours.notifications as u64 {
            wrong.push(format!("roced counted {notifications} CNPs, and sent {}", ours.notifications));
        }
        if packets != theirs.others as u64 {
            wrong.push(format!(
                "rxe counted {packets} packets of {} and {} CNPs, which it drops",
                theirs.others, theirs.notified
            ));
        }
    }
    wrong
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:6} {} ({:.1} s, {} frames)",
            self.word(),
            self.scenario,
            self.took.as_secs_f32(),
            self.verdict.frames()
        )?;
        let lines = self.errors.iter().chain(&self.last_ack).flat_map(|text| text.lines());
        lines.take(LINES_MAX).try_for_each(|line| write!(f, "\n        {line}"))
    }
}

/// How the frames of the two differ where they do the same, over each network.
pub(crate) fn differences(outcomes: &[Outcome]) -> BTreeMap<&'static str, Vec<Difference>> {
    let mut found = BTreeMap::new();
    for network in Network::ALL {
        let of = |client: Side| {
            let is_it = |it: &&Outcome| {
                it.scenario.run == Run::Ends("operations")
                    && (it.scenario.client, it.scenario.network) == (client, network)
            };
            outcomes.iter().find(is_it).filter(|it| it.is_good()).map(|it| &it.verdict.ports)
        };
        if let (Some(ours), Some(theirs)) = (of(Side::Roced), of(Side::Rxe)) {
            found.insert(network.name(), compare([ours, theirs]));
        }
    }
    found
}

/// A table of them, and a line for each that has no reason.
pub(crate) fn differences_table(outcomes: &[Outcome]) -> (String, Vec<String>) {
    let mut text = format!("{DIFFERENCES}|---|---|---|---|\n");
    let mut without_reason = Vec::new();
    let mut told = BTreeSet::new();
    for (network, differences) in differences(outcomes) {
        for difference in differences {
            let line = difference.to_string();
            if !told.insert(line.clone()) {
                continue;
            }
            text.push_str(&line);
            text.push('\n');
            if difference.reason().is_none() {
                without_reason.push(format!("interop: a difference over {network} without a reason: {line}"));
            }
        }
    }
    (text, without_reason)
}

/// The table, and the deviations, a line each.
pub(crate) fn table(outcomes: &[Outcome]) -> String {
    let mut table = Table::new();
    table.load_preset(ASCII_MARKDOWN);
    table.set_header([
        "#",
        "program",
        "client > server",
        "bytes",
        "MTU",
        "network",
        "faults",
        "frames",
        "harmed",
        "result",
        "otherwise",
        "s",
    ]);
    for (number, outcome) in outcomes.iter().enumerate() {
        let scenario = &outcome.scenario;
        table.add_row([
            (number + 1).to_string(),
            scenario.program(),
            scenario.direction(),
            scenario.bytes(),
            scenario.mtu.to_string(),
            scenario.network.to_string(),
            scenario.faults(),
            outcome.verdict.frames().to_string(),
            outcome.told.harmed.iter().sum::<u64>().to_string(),
            outcome.word().to_owned(),
            outcome.otherwise(),
            format!("{:.1}", outcome.took.as_secs_f32()),
        ]);
    }
    format!("{table}\n\n{}", notes(outcomes).map(|note| format!("- {note}\n")).collect::<String>())
}

/// Notes that the table has no room for.
fn notes(outcomes: &[Outcome]) -> impl Iterator<Item = String> {
    let mut theirs = BTreeMap::new();
    let mut quirks = BTreeMap::<_, Vec<_>>::new();
    let mut notes = Vec::new();
    for (number, outcome) in outcomes.iter().enumerate() {
        let number = number + 1;
        for (rule, (count, first)) in &outcome.verdict.theirs {
            let entry = theirs.entry(*rule).or_insert_with(|| (0, 0, format!("scenario {number}: {first}")));
            entry.0 += count;
            entry.1 += 1;
        }
        for quirk in &outcome.told.quirks {
            quirks.entry(quirk.to_string()).or_default().push(number.to_string());
        }
        notes.extend(outcome.last_ack.iter().map(|evidence| format!("scenario {number}: {evidence}")));
    }
    let known =
        |(quirk, scenarios): (String, Vec<String>)| format!("as known, {quirk}: in scenarios {}", scenarios.join(", "));
    notes.extend(quirks.into_iter().map(known));
    notes.extend(theirs.into_iter().map(|(rule, (count, scenarios, first))| {
        format!("of rxe, {rule}: {count} times in {scenarios} scenarios, such as in {first}")
    }));
    let unrelated: usize = outcomes.iter().map(|outcome| outcome.verdict.unrelated).sum();
    let frames: usize = outcomes.iter().map(|outcome| outcome.verdict.frames()).sum();
    notes.push(format!("{frames} frames looked at; {unrelated} of them on connections that cannot be told apart"));
    notes.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cm_test::CmTest,
        scenario::{Harm, MARKED, Stock},
    };

    fn wrong(run: Run, change: impl FnOnce(&mut Verdict)) -> Vec<String> {
        let mut verdict = Verdict { sent: [10, 10], ..Verdict::default() };
        change(&mut verdict);
        wrong_in_captures(&Scenario::plain(run, Side::Rxe), &Told::default(), &verdict)
    }

    #[test]
    fn an_unchecked_case_does_not_pass() {
        let run = Run::Stock(Stock::SendBw);
        assert!(wrong(run, |_| ()).is_empty());
        assert_eq!(wrong(run, |it| it.sent = [0, 10]), ["no frame of roced was captured"]);
        assert_eq!(wrong(run, |it| it.sent = [0, 0]).len(), 2);
        assert!(wrong(run, |it| it.unrelated = 1)[0].contains("cannot be told apart"));
        assert!(wrong(run, |it| it.damaged = 1)[0].contains("were damaged"));
        assert_eq!(wrong(run, |it| it.ours.push("a rule".to_owned())), ["a rule"]);
    }

    #[test]
    fn only_a_server_that_owes_nothing_may_be_silent() {
        for run in [Run::Stock(Stock::UdSendBw), Run::Stock(Stock::UcWriteBw), Run::Ends("retry-exceeded")] {
            assert!(wrong(run, |it| it.sent = [0, 10]).is_empty(), "{run:?}");
            assert_eq!(wrong(run, |it| it.sent = [10, 0]), ["no frame of rxe was captured"], "{run:?}");
        }
    }

    /// A scenario with marks in which all is well, with one thing changed.
    fn wrong_of_marks(change: impl FnOnce(&mut Told, &mut [Marks; 2])) -> Vec<String> {
        let mut scenario = Scenario::plain(Run::Ends(MARKED), Side::Rxe);
        scenario.harm = Some((Harm::Mark, "50%"));
        let counted = Some(Counted { notifications: 3, packets: 100 });
        let mut told = Told { marked: 40, counted, ..Told::default() };
        let ours = Marks { arrived: 38, notifications: 3, ..Marks::default() };
        let mut marks = [ours, Marks { allowed: 80, notified: 3, others: 100, ..Marks::default() }];
        change(&mut told, &mut marks);
        wrong_marks(&scenario, &told, marks, false)
    }

    #[test]
    fn marks_without_effect_do_not_pass() {
        assert_eq!(wrong_of_marks(|_, _| ()), [""; 0]);
        let changes: [fn(&mut Told, &mut [Marks; 2]); 7] = [
            |told, _| told.marked = 0,
            |told, _| told.counted = Some(Counted { notifications: 2, packets: 100 }),
            |told, _| told.counted = Some(Counted { notifications: 3, packets: 103 }),
            |_, marks| marks[0].arrived = 0,
            |_, marks| marks[1].allowed = 0,
            |_, marks| marks[1].notified = 0,
            |_, marks| marks[1].notifications = 1,
        ];
        for (nth, change) in changes.into_iter().enumerate() {
            assert_eq!(wrong_of_marks(change).len(), 1, "change {nth}");
        }
    }

    #[test]
    fn marks_are_expected_only_where_there_may_be_some() {
        let wrong = |run: Run, ecn: bool, allowed: [usize; 2]| {
            let marks = allowed.map(|allowed| Marks { allowed, ..Marks::default() });
            wrong_marks(&Scenario::plain(run, Side::Rxe), &Told::default(), marks, ecn).len()
        };
        let stock = Run::Stock(Stock::SendBw);
        assert_eq!(wrong(stock, false, [0, 0]), 0);
        // rxe's packets may be marked, although no program asked for that.
        assert_eq!(wrong(stock, false, [0, 1]), 1);
        assert_eq!(wrong(Run::Stock(Stock::RcPingpong), true, [100, 1]), 1);
        // One in ten of 200 is marked for certain.
        assert_eq!([wrong(stock, true, [99, 100]), wrong(stock, true, [100, 100])], [0, 1]);
        // The switch marks no packets of connections there.
        assert_eq!(wrong(Run::Cm(CmTest::FifthLost), true, [500, 500]), 0);
    }
}
