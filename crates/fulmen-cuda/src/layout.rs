//! Keeps the arguments of kernels equal in Rust and in CUDA.
//!
//! [`kernel_args!`] declares the structs and constants that a kernel file shares with its Rust file. It also
//! adds a test that renders `kernels/layout/NAME.cuh`: assertions about the size of each CUDA struct and the
//! offset, size and type of each field, and about the value of each constant. The kernel file includes it
//! below its own declarations, so that a difference is a compile error in `scripts/build-kernels`. The test
//! fails if the committed file is not up to date. This command writes it:
//!
//! ```text
//! FULMEN_UPDATE=1 cargo test -p fulmen-cuda --lib kernel_layout
//! ```
//!
//! Names are the same on both sides. A Rust field of type [`DevicePtr`] is a pointer in CUDA;
//! `u32`, `u64`, `f32` and `f64` are numbers of that size; any other type is the CUDA struct of that name.
//! Arrays may be of all of them.

/// An address on the device, and 0 where there is none.
pub(crate) type DevicePtr = u64;

/// Declares the argument structs and constants of a kernel file; see the [module](self). Once per Rust
/// module:
///
/// ```ignore
/// /// Rows of a tile.
/// const TILE: u32 = 64;
///
/// kernel_args! {
///     file: "softmax.cu";
///     constants: [TILE];
///
///     /// Arguments of `softmax`.
///     struct SoftmaxArgs {
///         x: DevicePtr,
///         width: u32,
///         scale: f32,
///     }
/// }
/// ```
///
/// Structs become `repr(C)` and `Pod`, so padding is a compile error: spell it out as a field `unused`.
macro_rules! kernel_args {
    (
        @declare $file:literal $([$($constant:ident),* $(,)?])?;
        $(
            $(#[$meta:meta])*
            $vis:vis struct $name:ident {
                $($(#[$field_meta:meta])* $field_vis:vis $field:ident: $type:ty),* $(,)?
            }
        )*
    ) => {
        $(
            $(#[$meta])*
            #[repr(C)]
            #[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
            $vis struct $name {
                $($(#[$field_meta])* $field_vis $field: $type),*
            }
        )*

        #[cfg(test)]
        const KERNEL_LAYOUT: $crate::layout::test::FileLayout = $crate::layout::test::FileLayout {
            file: $file,
            rust_file: file!(),
            constants: &[$($((stringify!($constant), $constant as i64)),*)?],
            structs: &[$($crate::layout::test::StructLayout {
                name: stringify!($name),
                size: size_of::<$name>(),
                fields: &[$($crate::layout::test::FieldLayout {
                    name: stringify!($field),
                    type_name: stringify!($type),
                    offset: std::mem::offset_of!($name, $field),
                    size: size_of::<$type>(),
                }),*],
            }),*],
        };
    };
    (file: $file:literal; constants: $constants:tt; $($structs:tt)*) => {
        $crate::layout::kernel_args! { @check $file $constants; $($structs)* }
    };
    (file: $file:literal; $($structs:tt)*) => {
        $crate::layout::kernel_args! { @check $file []; $($structs)* }
    };
    (@check $file:literal $constants:tt; $($structs:tt)*) => {
        $crate::layout::kernel_args! { @declare $file $constants; $($structs)* }

        #[cfg(test)]
        mod kernel_layout {
            #[test]
            fn matches_the_cuda_side() {
                super::KERNEL_LAYOUT.check();
            }
        }
    };
}

pub(crate) use kernel_args;

#[cfg(test)]
pub(crate) mod test {
    use std::fmt::Write;
    use std::path::Path;
    use std::{env, fs};

    use super::DevicePtr;

    /// What [`kernel_args!`](super::kernel_args) has seen of one file.
    pub(crate) struct FileLayout {
        /// The CUDA file that declares the structs, in `kernels`.
        pub(crate) file: &'static str,
        pub(crate) rust_file: &'static str,
        pub(crate) constants: &'static [(&'static str, i64)],
        pub(crate) structs: &'static [StructLayout],
    }

    pub(crate) struct StructLayout {
        pub(crate) name: &'static str,
        pub(crate) size: usize,
        pub(crate) fields: &'static [FieldLayout],
    }

    pub(crate) struct FieldLayout {
        pub(crate) name: &'static str,
        pub(crate) type_name: &'static str,
        pub(crate) offset: usize,
        pub(crate) size: usize,
    }

    impl FileLayout {
        /// Compares the rendered assertions with the committed ones, or writes them with `FULMEN_UPDATE=1`.
        pub(crate) fn check(&self) {
            let kernels = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
            let (stem, _) = self.file.split_once('.').expect("a CUDA file");
            let include = format!("#include \"layout/{stem}.cuh\"");
            let source = fs::read_to_string(kernels.join(self.file)).unwrap_or_default();
            assert!(source.contains(&include), "kernels/{} does not contain `{include}`", self.file);

            let (path, text) = (kernels.join(format!("layout/{stem}.cuh")), self.render());
            if env::var_os("FULMEN_UPDATE").is_some() {
                fs::write(&path, &text).unwrap();
            }
            let committed = fs::read_to_string(&path).unwrap_or_default();
            assert!(
                committed == text,
                "kernels/layout/{stem}.cuh does not match {}; run FULMEN_UPDATE=1 cargo test -p fulmen-cuda \
                 --lib kernel_layout, then scripts/build-kernels",
                self.rust_file
            );
        }

        pub(crate) fn render(&self) -> String {
            let rust_file = self.rust_file.replace('\\', "/");
            let rust_file = rust_file.split_once("fulmen-cuda/").map_or(&*rust_file, |(_, path)| path);
            let mut text = format!(
                "// The layout of the structs and constants that {rust_file} shares with\n\
                 // {}.\n\
                 // Written by FULMEN_UPDATE=1 cargo test -p fulmen-cuda --lib kernel_layout\n\
                 #pragma once\n\
                 #include \"layout/assert.cuh\"\n",
                self.file
            );
            if !self.constants.is_empty() {
                text.push('\n');
            }
            for (name, value) in self.constants {
                writeln!(text, "ASSERT_CONSTANT({name}, {value});").unwrap();
            }
            for StructLayout { name, size, fields } in self.structs {
                writeln!(text, "\nASSERT_STRUCT({name}, {size});").unwrap();
                for field in *fields {
                    writeln!(text, "{}", field.render(name)).unwrap();
                }
            }
            text
        }
    }

    impl FieldLayout {
        fn render(&self, of: &str) -> String {
            let FieldLayout { name, type_name, offset, size } = *self;
            match element_type(type_name) {
                "DevicePtr" => format!("ASSERT_POINTER({of}, {name}, {offset}, {size});"),
                element => {
                    let element = match element {
                        "f32" => "float",
                        "f64" => "double",
                        other => other,
                    };
                    format!("ASSERT_FIELD({of}, {name}, {element}, {offset}, {size});")
                }
            }
        }
    }

    /// The type of the elements of an array, or the type itself; without its module.
    fn element_type(type_name: &str) -> &str {
        let element = type_name.trim_start_matches('[').split(';').next().unwrap_or(type_name);
        element.rsplit("::").next().unwrap_or(element).trim()
    }

    const TILE: u32 = 16;

    kernel_args! {
        @declare "example.cuh" [TILE];

        #[derive(Debug)]
        struct Part {
            w: DevicePtr,
            rows: u32,
            scale: f32,
        }

        struct ExampleArgs {
            parts: [Part; 3],
            caches: [DevicePtr; 2],
            base: f64,
        }
    }

    #[test]
    fn arrays_and_nested_structs_are_rendered() {
        let expected = "
ASSERT_CONSTANT(TILE, 16);

ASSERT_STRUCT(Part, 16);
ASSERT_POINTER(Part, w, 0, 8);
ASSERT_FIELD(Part, rows, u32, 8, 4);
ASSERT_FIELD(Part, scale, float, 12, 4);

ASSERT_STRUCT(ExampleArgs, 72);
ASSERT_FIELD(ExampleArgs, parts, Part, 0, 48);
ASSERT_POINTER(ExampleArgs, caches, 48, 16);
ASSERT_FIELD(ExampleArgs, base, double, 64, 8);
";
        let rendered = KERNEL_LAYOUT.render();
        assert!(rendered.ends_with(expected), "{rendered}");
    }
}
