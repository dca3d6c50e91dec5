//! The backends that a program can use, by name.
//!
//! The set is open: [`Registry::builtin`] has the backends of this build, and a program registers others
//! beside them. Nothing here knows a backend by its type.

use std::{fmt, sync::Arc};

use fulmen_core::device::{BackendName, BackendReport, DeviceInfo, DeviceSelector};
use fulmen_engine::Device;

use crate::builtin;
use crate::select::{SelectError, select};

/// Options for opening a device. A backend ignores those that do not concern it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// CPU threads; `None` for all of them.
    pub threads: Option<usize>,
}

/// Why a backend did not open a device.
pub type OpenError = Box<dyn std::error::Error + Send + Sync>;

/// What the registry asks of a backend: its devices, how good they are, and to open one.
pub trait BackendProvider: Send + Sync {
    /// The name that selects this backend.
    fn name(&self) -> BackendName;

    /// The devices that are there, or why there are none. Must not open a device, which may take memory and
    /// time.
    fn report(&self) -> BackendReport;

    /// The place of a device when `auto` selects one: the lowest number wins, and of equal ones the first.
    /// The built-in backends use 100 for CUDA, 200, 300 and 400 for discrete, integrated and other GPUs of
    /// wgpu, 500 for the CPU, and 600 for a software GPU.
    fn rank(&self, device: &DeviceInfo) -> u32;

    /// Opens one of the devices that [`report`](Self::report) listed.
    ///
    /// # Errors
    /// The reason why it cannot be opened.
    fn open(&self, device: &DeviceInfo, options: &OpenOptions) -> Result<Device, OpenError>;
}

/// Why a backend was not registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a backend named {name} is registered already")]
pub struct RegisterError {
    /// The name that is taken.
    pub name: BackendName,
}

/// The backends that a program can use.
///
/// ```
/// use fulmen::Registry;
///
/// let registry = Registry::builtin();
/// let device = registry.open("cpu".parse()?)?;
/// assert_eq!(device.backend(), "cpu");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Default)]
pub struct Registry {
    providers: Vec<Arc<dyn BackendProvider>>,
}

impl Registry {
    /// A registry without backends.
    pub fn empty() -> Registry {
        Registry::default()
    }

    /// The backends that this crate was built with: its cargo features `cuda`, `wgpu` and `cpu`.
    pub fn builtin() -> Registry {
        Registry { providers: builtin::providers() }
    }

    /// Adds a backend.
    ///
    /// # Errors
    /// If there is one of the same name.
    pub fn register(&mut self, provider: impl BackendProvider + 'static) -> Result<(), RegisterError> {
        let name = provider.name();
        if self.provider(name).is_some() {
            return Err(RegisterError { name });
        }
        self.providers.push(Arc::new(provider));
        Ok(())
    }

    /// The names of all backends, in the order in which they were registered.
    pub fn names(&self) -> Vec<BackendName> {
        self.providers.iter().map(|provider| provider.name()).collect()
    }

    fn provider(&self, name: BackendName) -> Option<&dyn BackendProvider> {
        self.providers.iter().find(|provider| provider.name() == name).map(AsRef::as_ref)
    }

    /// The provider of a name, or an error that says which there are.
    fn known(&self, name: BackendName, asked: DeviceSelector) -> Result<&dyn BackendProvider, SelectError> {
        self.provider(name).ok_or_else(|| match builtin::LEFT_OUT.contains(&name) {
            true => SelectError::LeftOut { asked, backend: name, known: self.names() },
            false => SelectError::Unknown { asked: asked.to_string(), known: self.names() },
        })
    }

    /// A selector of one of these backends, from text such as `auto`, `cpu` or `wgpu:1`. Does not look for
    /// devices.
    ///
    /// # Errors
    /// [`SelectError::Unknown`] or [`SelectError::LeftOut`], with the backends that there are.
    pub fn parse(&self, text: &str) -> Result<DeviceSelector, SelectError> {
        let unknown = |_| SelectError::Unknown { asked: text.to_owned(), known: self.names() };
        let asked = text.parse().map_err(unknown)?;
        self.check(asked).map(|()| asked)
    }

    /// Checks that the backend of a selector is registered.
    fn check(&self, asked: DeviceSelector) -> Result<(), SelectError> {
        match asked {
            DeviceSelector::Auto => Ok(()),
            DeviceSelector::Backend(name) | DeviceSelector::Device(name, _) => {
                self.known(name, asked).map(|_| ())
            }
        }
    }

    /// What every backend found.
    pub fn reports(&self) -> Vec<BackendReport> {
        self.providers.iter().map(|provider| provider.report()).collect()
    }

    /// Selects a device from reports of these backends. Only devices that can run graphs are returned.
    ///
    /// # Errors
    /// If the backend is unknown, or if the device does not exist or cannot be used.
    pub fn choose<'a>(
        &self,
        reports: &'a [BackendReport],
        asked: DeviceSelector,
    ) -> Result<&'a DeviceInfo, SelectError> {
        self.check(asked)?;
        // A report of a backend that is not registered here can be selected by name only.
        let rank = |info: &DeviceInfo| self.provider(info.backend).map_or(u32::MAX, |p| p.rank(info));
        select(reports, asked, rank)
    }

    /// Opens a device for graphs and models.
    ///
    /// # Errors
    /// If the backend is unknown, or if the device does not exist, cannot be used or cannot be opened.
    pub fn open(&self, asked: DeviceSelector) -> Result<Device, SelectError> {
        self.open_with(asked, &OpenOptions::default()).map(|(_, device)| device)
    }

    /// Opens a device with options, and returns its description.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with(
        &self,
        asked: DeviceSelector,
        options: &OpenOptions,
    ) -> Result<(DeviceInfo, Device), SelectError> {
        let reports = match asked {
            DeviceSelector::Auto => self.reports(),
            // Only the report that is needed: querying a driver takes time, and some write to the terminal.
            DeviceSelector::Backend(name) | DeviceSelector::Device(name, _) => {
                vec![self.known(name, asked)?.report()]
            }
        };
        let info = self.choose(&reports, asked)?.clone();
        let device = self.known(info.backend, asked)?.open(&info, options);
        match device {
            Ok(device) => Ok((info, device)),
            Err(error) => Err(SelectError::Unavailable { asked, reason: error.to_string() }),
        }
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Registry").field(&self.names()).finish()
    }
}
