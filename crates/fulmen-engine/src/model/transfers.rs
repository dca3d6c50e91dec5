//! Copies of KV pages: inside the pool, to the host and back.

use fulmen_core::{Backend, BackendError, CopyCall, PageLayout, ReadTicket};

use crate::pages::Transfer;

/// The pools of keys and values of one layer, and the bytes of a page.
#[derive(Clone, Copy, Debug)]
pub(super) struct LayerPool {
    pub(super) k: u64,
    pub(super) v: u64,
    pub(super) layout: PageLayout,
}

impl LayerPool {
    /// A page of the keys and the same page of the values.
    fn page(&self, page: u32) -> [u64; 2] {
        [self.k, self.v].map(|ptr| ptr + u64::from(page) * self.layout.bytes() as u64)
    }
}

/// Keys or values of a layer on the host: arrived, or on their way.
enum HostBytes {
    Ready(Vec<u8>),
    Pending(ReadTicket),
}

/// The pages of all layers on the host.
pub(super) struct HostPages {
    /// By page; keys and values of each layer, empty if nothing was swapped out to it.
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
        layers: &[LayerPool],
        transfer: Transfer,
    ) -> Result<(), BackendError> {
        match transfer {
            Transfer::Copy { from, to, .. } => {
                for layer in layers {
                    let bytes = layer.layout.bytes();
                    for (input, output) in layer.page(from.0).into_iter().zip(layer.page(to.0)) {
                        device.dispatch_copy(&CopyCall { input, output, bytes })?;
                    }
                }
            }
            Transfer::SwapOut { from, to, .. } => {
                let mut parts = Vec::with_capacity(2 * layers.len());
                for layer in layers {
                    for ptr in layer.page(from.0) {
                        parts.push(HostBytes::Pending(device.start_read(ptr, layer.layout.bytes())?));
                    }
                }
                *self.page(to.0)? = parts;
            }
            Transfer::SwapIn { from, to, .. } => {
                self.arrive(from.0)?;
                let parts = self.page(from.0)?;
                for (layer, parts) in layers.iter().zip(parts.chunks(2)) {
                    for (ptr, part) in layer.page(to.0).into_iter().zip(parts) {
                        if let HostBytes::Ready(bytes) = part {
                            device.write(ptr, bytes)?;
                        }
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
