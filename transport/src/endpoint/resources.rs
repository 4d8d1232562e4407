//! Resources that the queue pairs of an endpoint share: memory regions, address handles and shared
//! receive queues.

use super::EndpointConfig;
use crate::{ah::AhTable, clock::Nanos, mr::MrTable, qp::EndpointContext, srq::Srqs};

/// Tables of shared resources.
#[derive(Debug)]
pub(super) struct Resources {
    pub(super) mrs: MrTable,
    pub(super) ahs: AhTable,
    pub(super) srqs: Srqs,
}

impl Resources {
    pub(super) fn new(config: &EndpointConfig) -> Self {
        Self { mrs: MrTable::new(config.max_mrs), ahs: AhTable::new(config.max_ahs), srqs: Srqs::new(config.max_srqs) }
    }

    /// EndpointContext of one call of a queue pair.
    pub(super) fn context<'t, A>(&'t mut self, now: Nanos, app: &'t mut A) -> EndpointContext<'t, A> {
        EndpointContext { now, mrs: &self.mrs, ahs: &self.ahs, srqs: &mut self.srqs, app }
    }
}
