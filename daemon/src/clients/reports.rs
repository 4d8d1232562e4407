//! Reports of sessions and accounts to operators.

use std::collections::BTreeMap;

use roced_memory::client_memory::MemoryKind;
use roced_report::{AccountReport, MemoryReport, SessionReport};
use roced_types::{AccountId, DeviceId};

use super::Clients;
use crate::calls::session::SessionStage;

impl Clients {
    /// Every session, for operators.
    pub fn reports(&self) -> impl Iterator<Item = SessionReport> + '_ {
        self.sessions.values().map(|session| {
            let process = session.connection.process();
            let mut report = SessionReport {
                session: session.id.0,
                pid: process.pid,
                program: session.program.clone(),
                uid: process.uid,
                device: String::new(),
                qps: 0,
                mrs: 0,
                memory_bytes: 0,
                memory: MemoryReport::default(),
            };
            if let SessionStage::Open(objects) = &session.stage {
                let name = |device: DeviceId| {
                    self.registry
                        .devices
                        .iter()
                        .find(|candidate| candidate.setup.id == device)
                        .map(|found| &found.setup.name)
                };
                report.device = name(objects.device).cloned().unwrap_or_default();
                report.qps = objects.qps.len() as u32;
                report.mrs = objects.mrs.len() as u32;
                report.memory_bytes = objects.bytes();
                for memory in objects.memories.values().map(|object| &object.memory) {
                    *match memory.kind() {
                        MemoryKind::Allocated => &mut report.memory.allocated_bytes,
                        MemoryKind::Migrated => &mut report.memory.migrated_bytes,
                        MemoryKind::FileBacked => &mut report.memory.file_backed_bytes,
                        MemoryKind::Proxied => &mut report.memory.proxied_bytes,
                    } += memory.bytes();
                }
            }
            report
        })
    }

    /// Every account, for operators; of the network come the questions for neighbors that waited.
    pub fn account_reports(&self, delayed_neighbors: &BTreeMap<AccountId, u64>) -> Vec<AccountReport> {
        self.registry.ledger.reports(&self.listener.accounts().slow_wakes(), delayed_neighbors)
    }
}
