//! Whole programs on two hosts, as a user runs them: `roced`, `rocectl`, `roce-perf` and clients of
//! the library, in labs that `scripts/lab` makes. One test at a time, because the machine may be
//! small. Needs root; without it every test counts as ignored. With ROCED_FULL=1 in the environment
//! the runs are long.

mod atomics;
mod classes;
mod congestion;
mod connections;
mod deaths;
mod examples;
mod faults;
mod frameworks;
mod interfaces;
mod lab;
mod lives;
mod memory;
mod napi;
mod operations;
mod pauses;
mod perf;
mod port_classes;
mod program;
mod programs;
mod quiet;
mod rates;
mod refusals;
mod reload;
mod sandbox;
mod senders;
mod srq;
mod states;
mod transfers;
mod unreliable;
mod windows;
mod wire;

use std::{env, fs, process::Command};

use anyhow::{Context as _, Result, ensure};
use libtest_mimic::{Arguments, Failed, Trial};
use nix::{
    sys::statvfs::{FsFlags, statvfs},
    unistd::Uid,
};

/// Host b, from host a.
pub(crate) const PEER_IPV4: &str = "10.10.0.2";

/// Host a's address.
pub(crate) const OWN_IPV4: &str = "10.10.0.1";
/// Host b, from host a.
pub(crate) const PEER_IPV6: &str = "fd00:10::2";

/// How long the runs are.
#[derive(Clone, Copy)]
pub(crate) struct Settings {
    /// Without a limit of time.
    pub(crate) full: bool,
    /// The test's own client programs.
    pub(crate) client: &'static str,
}

impl Settings {
    /// Of a transfer that only has to be right.
    pub(crate) fn bytes(self) -> &'static str {
        if self.full { "256M" } else { "16M" }
    }

    /// Messages one by one.
    pub(crate) fn rounds(self) -> u32 {
        if self.full { 20_000 } else { 800 }
    }

    /// Of a transfer through faults.
    pub(crate) fn fault_bytes(self) -> &'static str {
        if self.full { "1G" } else { "64M" }
    }

    /// Of a message that is broken off.
    pub(crate) fn region_bytes(self) -> &'static str {
        if self.full { "1073741824" } else { "268435456" }
    }
}

type Test = fn(&Settings) -> Result<()>;

macro_rules! tests {
    ($($module:ident: $($test:ident)*;)*) => {
        &[$($((concat!(stringify!($module), "::", stringify!($test)), $module::$test as Test),)*)*]
    };
}

const TESTS: &[(&str, Test)] = tests! {
    operations: the_table_names_a_test_for_each_cell rc_send rc_send_with_immediate rc_write rc_write_with_immediate
        rc_read rc_compare_and_swap rc_fetch_and_add rc_atomic_write rc_flush uc_send uc_send_with_immediate uc_write uc_write_with_immediate
        ud_send ud_send_with_immediate;
    transfers: by_ipv6 at_every_path_mtu a_link_of_1500_carries_a_path_mtu_of_1024 through_a_router_by_ipv4_and_ipv6
        a_peer_on_this_very_host four_queues_on_one_worker two_queues_on_two_workers two_devices_on_one_worker
        frames_on_the_wrong_queue_are_forwarded;
    wire: the_icrc_check_knows_good_from_bad others_understand_our_frames rocev1_and_rocev2_on_one_device_at_once
        traffic_class_hop_limit_and_flow_label_are_on_the_frames marked_data_is_answered_by_notifications
        a_sender_that_is_notified_has_a_smaller_window
        a_router_changes_the_hop_limit_and_nothing_that_counts vlan_and_priority_are_on_the_frames;
    classes: two_classes_have_their_shares a_ping_of_a_strict_class_does_not_wait_for_bulk
        bulk_goes_on_after_its_link_was_down;
    rates: an_account_has_its_highest_rate a_device_has_its_highest_rate;
    congestion: two_senders_share_a_port_that_marks four_senders_share_a_port_that_marks
        responses_to_reads_share_a_port_that_marks senders_with_dcqcn_share_a_port
        without_a_congestion_window_the_port_drops marked_frames_have_a_right_icrc;
    pauses: pauses_of_a_switch_prevent_losses a_storm_of_pauses_ends_in_the_watchdog
        a_reported_storm_pauses_to_its_end a_receiver_without_room_pauses_its_neighbor;
    port_classes: a_ping_of_a_strict_class_passes_bulk_in_the_switch two_classes_of_a_port_have_their_shares
        a_lossless_class_loses_nothing_beside_one_that_drops;
    faults: a_lost_last_frame_is_sent_again one_frame_in_a_hundred_lost one_frame_in_a_hundred_twice
        one_frame_in_a_hundred_damaged;
    lives: a_queue_pair_has_one_source_port_in_each_life frames_of_an_earlier_life_harm_no_other_queue_pair frames_of_an_earlier_life_harm_no_queue_pair_that_was_reset;
    memory: the_last_byte_never_comes_before_an_older_one deregistering_under_way_is_a_protection_error;
    atomics: a_number_that_all_change_counts_every_change_once;
    states: a_send_queue_drains_and_goes_on;
    srq: many_queue_pairs_take_from_one_receive_queue;
    windows: a_bound_window_is_open_and_an_invalidated_one_is_closed an_unreliable_connection_binds_and_invalidates_windows;
    deaths: a_killed_daemon a_killed_daemon_with_generic_xdp a_killed_client a_killed_client_with_full_send_queues an_orderly_stop signals_without_a_meaning_stop_nothing;
    interfaces: one_that_returns_is_served_again one_that_is_renamed_is_served_on one_that_cannot_be_attached_to_is_tried_again
        a_program_that_is_not_run_is_attached_again a_higher_mtu_attaches_again_and_connections_survive
        a_removed_device_is_served_again_when_added frames_keep_the_queue_of_a_port a_queue_that_cannot_be_opened_ends_no_others
        an_interface_with_more_rx_than_tx_queues_is_served a_port_with_queues_that_are_not_listed_is_warned_of
        an_mtu_that_becomes_too_small_is_warned_of;
    reload: keys_are_applied_or_named_and_connections_survive a_wrong_config_changes_nothing denied_peers_are_kept_out_both_ways;
    sandbox: every_thread_is_confined_and_serves without_it_the_daemon_says_so;
    refusals: configs_that_cannot_be_served a_daemon_that_cannot_start_leaves_no_folder
        a_service_waits_for_its_interface check_config_says_all_that_is_wrong a_missing_capability
        an_mtu_that_is_too_small another_version_of_the_client_abi a_peer_that_never_answers no_daemon;
    napi: threads_move_data_and_are_gone_afterward threads_follow_the_daemon_into_a_real_time_class the_drivers_way_touches_nothing;
    unreliable: every_message_of_a_connection_arrives delivered_messages_are_complete_despite_losses
        datagrams_are_answered_by_ipv4_ipv6_and_through_a_router datagrams_between_two_workers_and_on_one_host
        lost_datagrams_cost_time_and_nothing_else a_datagram_without_receiver_is_lost_and_others_continue
        a_multicast_message_reaches_all_members a_listener_that_dies_leaves_its_groups;
    programs: devices_are_listed the_library_as_a_drop_in programs_that_open_the_library functions_of_newer_versions rates_are_told_and_kept wrong_calls_are_refused events_are_told pingpongs perftest the_tests_of_rdma_core a_program_without_rdma_notices_nothing a_dead_daemon_ends_programs
        memory_that_cannot_be_mapped eight_threads_on_the_same_objects
        threads_that_are_canceled_in_calls an_ordinary_user_of_the_group a_program_with_an_epoll_of_its_own;
    connections: librdmacm_opened_in_each_way programs_of_librdmacm programs_of_rsockets perftest datagrams_and_groups the_tests_of_rdma_core a_host_with_itself
        a_port_without_a_listener a_killed_program_and_a_killed_daemon killed_programs_leave_nothing a_dead_daemon_removes_the_device lost_datagrams
        an_orderly_stop_is_told_to_all_peers an_orderly_stop_learns_of_neighbors limits_of_the_config_and_refusals_are_told the_measuring_tool
        a_flood_of_management_datagrams;
    frameworks: ucx open_mpi;
    examples: first connection two_hosts send_recv datagram shared_receive read rc_write;
    quiet: an_idle_daemon_sleeps a_lab_leaves_nothing xdp_counters_account_for_every_frame;
};

fn main() -> Result<()> {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let root = Uid::effective().is_root();
    let vlans = root && kernel_has_vlans();
    let threads = kernel_gives_napi_threads();
    let settings = Settings {
        full: env::var_os("ROCED_FULL").is_some_and(|value| value != "0"),
        client: env!("CARGO_BIN_EXE_e2e-client"),
    };
    if !arguments.list {
        report_skipped_tests(root, vlans, threads);
        if root {
            lab::sweep()?;
            build()?;
        }
    }
    let trials = TESTS.iter().map(|(name, test)| {
        let skipped = !root && !name.contains("the_table")
            || name.contains("vlan") && !vlans
            || name.starts_with("napi::threads") && !threads;
        let run = move || test(&settings).map_err(|error| Failed::from(format!("{error:#}")));
        Trial::test(*name, run).with_ignored_flag(skipped)
    });
    libtest_mimic::run(&arguments, trials.collect()).exit()
}

fn report_skipped_tests(root: bool, vlans: bool, threads: bool) {
    if !root {
        println!("skipped: two hosts are network namespaces, which need root");
        return;
    }
    if !vlans {
        println!("skipped: tests of VLANs, because this kernel has no VLAN interfaces (CONFIG_VLAN_8021Q)");
    }
    if !threads {
        println!("skipped: NAPI in threads, which takes Linux 6.17, or 6.8 and a /sys that can be written");
    }
}

/// Tried out, because the module may be there but not loaded.
fn kernel_has_vlans() -> bool {
    let space = format!("e2e-vlan-{}", std::process::id());
    let ip =
        |arguments: &[&str]| Command::new("ip").args(arguments).output().is_ok_and(|output| output.status.success());
    let has = ip(&["netns", "add", &space])
        && ip(&["-n", &space, "link", "add", "v0", "type", "veth", "peer", "v1"])
        && ip(&["-n", &space, "link", "add", "link", "v0", "name", "v0.1", "type", "vlan", "id", "1"]);
    ip(&["netns", "del", &space]);
    has
}

/// As docs/tuning.md has it.
fn kernel_gives_napi_threads() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(|at: char| !at.is_ascii_digit()).map_while(|number| number.parse::<u32>().ok());
    let release = (numbers.next(), numbers.next());
    let sys_is_writable = statvfs("/sys").is_ok_and(|sys| !sys.flags().contains(FsFlags::ST_RDONLY));
    release >= (Some(6), Some(17)) || release >= (Some(6), Some(8)) && sys_is_writable
}

/// The programs under test, as they ship. `LAB_BUILD=0` says that they are there.
fn build() -> Result<()> {
    if env::var_os("LAB_BUILD").is_some_and(|value| value == "0") {
        return Ok(());
    }
    let status =
        Command::new(lab::repository().join("scripts/lab")).arg("build").status().context("scripts/lab build")?;
    ensure!(status.success(), "scripts/lab build failed");
    Ok(())
}
