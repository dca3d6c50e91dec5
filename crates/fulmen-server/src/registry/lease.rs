//! A loaded model in use by a request.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Instant;

use super::{Entry, ModelSpec, State};
use crate::served::ServedModel;

/// A loaded model that stays loaded while this lives.
pub struct Lease {
    entry: Arc<Entry>,
    model: Arc<dyn ServedModel>,
}

impl Lease {
    /// The model of an entry, if it is loaded.
    pub(super) fn take(entry: &Arc<Entry>) -> Option<Lease> {
        let State::Loaded(loaded) = &mut *entry.lock() else { return None };
        loaded.leases += 1;
        Some(Lease { entry: Arc::clone(entry), model: Arc::clone(&loaded.model) })
    }

    /// The description of the model.
    pub fn spec(&self) -> &ModelSpec {
        &self.entry.spec
    }

    /// The model.
    pub fn model(&self) -> &Arc<dyn ServedModel> {
        &self.model
    }
}

impl Deref for Lease {
    type Target = dyn ServedModel;

    fn deref(&self) -> &Self::Target {
        self.model.as_ref()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut state = self.entry.lock();
        // Models are taken away from their requests at the end of the server, or when their device is lost.
        if let State::Loaded(loaded) = &mut *state
            && Arc::ptr_eq(&loaded.model, &self.model)
        {
            loaded.leases = loaded.leases.saturating_sub(1);
            loaded.last_used = Instant::now();
        }
    }
}
