//! Reading headers and quantizing to a file.

use std::fs;
use std::ops::ControlFlow;

use fulmen_model::gguf::{GgufWriteError, NewFile, read_header};
use fulmen_model::quantize::{QuantizeError, QuantizePlan, quantize_to};
use fulmen_model::source::SourceError;
use fulmen_model::synth::{ModelShape, Synth};
use fulmen_testkit::inject::{FailingIo, Injector};

use crate::fail_each;
use crate::source::FailingSource;

fn synth(layers: usize) -> Synth {
    let shape = ModelShape { layers, vocabulary: 600, ..ModelShape::preset("tiny-llama").unwrap() };
    Synth::new(shape, "f16".parse().unwrap(), 1)
}

#[test]
fn headers() {
    let shape = ModelShape { vocabulary: 9000, ..ModelShape::preset("tiny-llama").unwrap() };
    let bytes = Synth::new(shape, "q8_0".parse().unwrap(), 1).bytes().unwrap();
    let injector = Injector::default();
    let read = || read_header(FailingIo::new(bytes.as_slice(), &injector), bytes.len() as u64);
    fail_each("GGUF header", &injector, u64::MAX, || {
        let (metadata, tensors) = read().unwrap_or_else(|error| {
            assert!(error.to_string().contains("cannot read the header: injected fault"), "{error}");
            read().unwrap()
        });
        (metadata.len(), tensors)
    });
}

#[test]
fn quantize() {
    let file = synth(3).file().unwrap();
    let injector = Injector::default();
    let source = FailingSource { inner: Box::new(file), injector: injector.clone() };
    for types in ["q8_0", "f16"] {
        let plan = QuantizePlan::of(&source, types.parse().unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.gguf");
        let write = || -> Result<(), QuantizeError> {
            let out = FailingIo::new(NewFile::create(&path, true)?, &injector);
            let out = quantize_to(&source, &plan, out, 2, |_| ControlFlow::Continue(()))?;
            Ok(out.into_inner().keep()?)
        };
        let mut before: Option<Vec<u8>> = None;
        fail_each(&format!("quantize to {types}"), &injector, 12, || {
            if let Err(error) = write() {
                let expected = matches!(
                    error,
                    QuantizeError::Read(SourceError::Gguf(_))
                        | QuantizeError::Write(GgufWriteError::Io { .. })
                );
                assert!(expected && error.to_string().contains("injected fault"), "{error}");
                let files = fs::read_dir(folder.path()).unwrap().count();
                assert_eq!(files, usize::from(before.is_some()), "nothing half-written");
                // The file of the last run is as it was.
                assert!(before.is_none() || fs::read(&path).ok() == before);
                write().unwrap();
            }
            let bytes = fs::read(&path).unwrap();
            before = Some(bytes.clone());
            bytes
        });
    }
}
