// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Structures of kernel interfaces, with every size and offset asserted when they are compiled.
//!
//! [`layouts!`](crate::layouts!) declares structures as a kernel's header does, with the size of each and the
//! offset of each field written beside them. A number that the Rust compiler does not agree with is a compile
//! error, so the numbers are what a reviewer compares with the header. For the tests of the crate that uses
//! it the macro also makes a table, `LAYOUTS`, to be compared with what a C compiler prints from the same
//! header.

/// A structure as it was declared, for comparison with a C compiler's idea of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The structure's name in the kernel's header; empty if it is not there.
    pub kernel: &'static str,
    /// The prefix of its fields' names there, if it is a member of a union.
    pub prefix: &'static str,
    /// How many bytes it has.
    pub size: usize,
    /// Its fields, in order.
    pub fields: &'static [Field],
}

/// A field of a [`Layout`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name in Rust.
    pub name: &'static str,
    /// Its offset in the structure.
    pub offset: usize,
    /// How many bytes it has.
    pub size: usize,
}

/// Declares structures of plain bytes with every size and offset asserted.
///
/// After a structure's own name stands its name in the kernel's header, then optionally what its fields' names begin
/// with there, then its size; after each field its offset. The crate that uses the macro depends on `zerocopy`. It
/// can be used once in a module: its tests find `LAYOUTS` there.
///
/// ```
/// hal_kernel::layouts! {
///     /// Closes a handle.
///     GemClose = "drm_gem_close", 8 {
///         /// Which.
///         handle: u32 = 0,
///         pad: u32 = 4,
///     }
/// }
/// assert_eq!(GemClose::default().handle, 0);
/// ```
///
/// An offset that is not the compiler's does not compile:
///
/// ```compile_fail,E0080
/// hal_kernel::layouts! {
///     /// Closes a handle.
///     GemClose = "drm_gem_close", 8 {
///         handle: u32 = 0,
///         pad: u32 = 5,
///     }
/// }
/// ```
///
/// Nor does a size:
///
/// ```compile_fail,E0080
/// hal_kernel::layouts! {
///     /// Closes a handle.
///     GemClose = "drm_gem_close", 12 {
///         handle: u32 = 0,
///         pad: u32 = 4,
///     }
/// }
/// ```
///
/// Nor does padding that is not declared:
///
/// ```compile_fail,E0277
/// hal_kernel::layouts! {
///     /// Has a hole.
///     Hole = "hole", 16 {
///         handle: u32 = 0,
///         size: u64 = 8,
///     }
/// }
/// ```
#[macro_export]
macro_rules! layouts {
    ($(
        $(#[$attribute:meta])*
        $name:ident = $kernel:literal $($prefix:literal)?, $size:literal {
            $($(#[$about:meta])* $field:ident: $type:ty = $offset:literal,)*
        }
    )*) => {
        $(
            $(#[$attribute])*
            #[derive(
                Clone, Copy, Debug, PartialEq, Eq,
                ::zerocopy::FromBytes, ::zerocopy::IntoBytes, ::zerocopy::Immutable, ::zerocopy::KnownLayout,
            )]
            #[repr(C)]
            #[allow(missing_docs, reason = "fields are named, and explained, by the kernel's headers")]
            pub struct $name {
                $($(#[$about])* pub $field: $type,)*
            }

            impl Default for $name {
                fn default() -> Self {
                    ::zerocopy::FromZeros::new_zeroed()
                }
            }

            const _: () = {
                assert!(::std::mem::size_of::<$name>() == $size);
                $(assert!(::std::mem::offset_of!($name, $field) == $offset);)*
            };
        )*

        /// A layout that a test compares with a C compiler's table.
        #[cfg(test)]
        #[allow(dead_code, reason = "where a header is compared otherwise")]
        const LAYOUTS: &[$crate::Layout] = &[$(
            $crate::Layout {
                kernel: $kernel,
                prefix: concat!($($prefix)?),
                size: $size,
                fields: &[$(
                    $crate::Field {
                        name: stringify!($field),
                        offset: $offset,
                        size: ::std::mem::size_of::<$type>(),
                    },
                )*],
            },
        )*];
    };
}

#[cfg(test)]
mod tests {
    use super::{Field, Layout};

    #[expect(unreachable_pub, reason = "the macro declares what a crate exports")]
    mod interface {
        crate::layouts! {
            /// A whole structure.
            Whole = "kernel_whole", 16 {
                count: u32 = 0,
                pad: u32 = 4,
                address: u64 = 8,
            }

            /// A member of a union.
            Member = "kernel_union" "alloc.", 8 {
                size: u64 = 0,
            }
        }

        pub(super) const TABLE: &[crate::Layout] = LAYOUTS;
    }

    const fn field(name: &'static str, offset: usize, size: usize) -> Field {
        Field { name, offset, size }
    }

    #[test]
    fn table_has_what_was_declared() {
        const WHOLE: &[Field] = &[field("count", 0, 4), field("pad", 4, 4), field("address", 8, 8)];
        const MEMBER: &[Field] = &[field("size", 0, 8)];
        let whole = Layout { kernel: "kernel_whole", prefix: "", size: 16, fields: WHOLE };
        let member = Layout { kernel: "kernel_union", prefix: "alloc.", size: 8, fields: MEMBER };
        assert_eq!(interface::TABLE, [whole, member]);
    }

    #[test]
    fn structure_begins_as_zeros() {
        let whole = interface::Whole::default();
        assert_eq!((whole.count, whole.pad, whole.address, interface::Member::default().size), (0, 0, 0, 0));
    }
}
