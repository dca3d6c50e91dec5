//! Copies of pages of a group of layers: inside the pools, to the host and back.

use fulmen_core::{Backend, BackendError, CopyCall, ReadTicket};

use crate::pages::Transfer;

/// The pool of the keys, of the values or of a recurrent state of one layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pool {
    /// The address of page 0.
    pub(super) ptr: u64,
    /// Bytes of a page.
    pub(super) bytes: usize,
}

impl Pool {
    fn page(&self, page: u32) -> u64 {
        self.ptr + u64::from(page) * self.bytes as u64
    }
}

/// A page of one pool on the host: arrived, or on its way.
enum HostBytes {
    Ready(Vec<u8>),
    Pending(ReadTicket),
}

/// The pages of a group of layers on the host.
pub(super) struct HostPages {
    /// By page; one of each pool, empty if nothing was swapped out to it.
    pages: Vec<Vec<HostBytes>>,
}

impl HostPages {
    pub(super) fn new(pages: u32) -> HostPages {
        HostPages { pages: (0..pages).map(|_| Vec::new()).collect() }
    }

    /// Runs a transfer. Does not wait for the device, but for pages that are swapped in right after they were
    /// swapped out.
    pub(super) fn run(
        &mut self,
        device: &mut dyn Backend,
        pools: &[Pool],
        transfer: Transfer,
    ) -> Result<(), BackendError> {
        match transfer {
            Transfer::Copy { from, to, .. } => {
                for pool in pools {
                    let (input, output) = (pool.page(from.0), pool.page(to.0));
                    device.dispatch_copy(&CopyCall { input, output, bytes: pool.bytes })?;
                }
            }
            Transfer::SwapOut { from, to, .. } => {
                let mut parts = Vec::with_capacity(pools.len());
                for pool in pools {
                    parts.push(HostBytes::Pending(device.start_read(pool.page(from.0), pool.bytes)?));
                }
                *self.page(to.0)? = parts;
            }
            Transfer::SwapIn { from, to, .. } => {
                self.arrive(from.0)?;
                let parts = self.page(from.0)?;
                for (pool, part) in pools.iter().zip(parts) {
                    if let HostBytes::Ready(bytes) = part {
                        device.write(pool.page(to.0), bytes)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Waits for what is on its way to a page.
    fn arrive(&mut self, page: u32) -> Result<(), BackendError> {
        for part in self.page(page)? {
            if let HostBytes::Pending(_) = part {
                let HostBytes::Pending(ticket) = std::mem::replace(part, HostBytes::Ready(Vec::new())) else {
                    continue;
                };
                *part = HostBytes::Ready(ticket.wait()?);
            }
        }
        Ok(())
    }

    /// Takes what has arrived, so that the device's staging memory is free again.
    pub(super) fn settle(&mut self) -> Result<(), BackendError> {
        for part in self.pages.iter_mut().flatten() {
            if let HostBytes::Pending(ticket) = part
                && let Some(bytes) = ticket.try_take()
            {
                *part = HostBytes::Ready(bytes?);
            }
        }
        Ok(())
    }

    fn page(&mut self, page: u32) -> Result<&mut Vec<HostBytes>, BackendError> {
        let limit = self.pages.len() as u32;
        let index = BackendError::Index { what: "the page on the host", row: 0, value: page, limit };
        self.pages.get_mut(page as usize).ok_or(index)
    }
}
