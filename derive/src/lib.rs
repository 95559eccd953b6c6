//! `#[derive(Schema)]` for [shm-pool](https://docs.rs/shm-pool). Use it through that crate, with its
//! feature `derive`.

#![forbid(unsafe_code)]

use proc_macro2::TokenStream;
use quote::{quote, ToTokens};
use syn::{
    parse_macro_input, Attribute, Data, DeriveInput, Error, Fields, Index, LitStr, Member, Result,
};

/// Implements `Schema` for a struct or an enum without generics.
///
/// The name is that of the type, or the one of `#[schema(name = "...")]`, which is needed if two
/// types of one name are sent. The version is a hash of the names and types of the fields in their
/// order, for an enum of each variant, and so changes with any of them. A change inside another
/// type, which this one contains, is noticed only if it changes the size or the alignment.
///
/// The other traits of a `Schema` are derived by zerocopy's macros: `TryFromBytes` (or `FromBytes`,
/// if any bytes are valid), `IntoBytes`, `KnownLayout` and `Immutable`. They need a `repr`.
#[proc_macro_derive(Schema, attributes(schema))]
pub fn schema(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    expand(&input)
        .unwrap_or_else(Error::into_compile_error)
        .into()
}

fn expand(input: &DeriveInput) -> Result<TokenStream> {
    let ident = &input.ident;
    if let Some(parameter) = input.generics.params.first() {
        return Err(Error::new_spanned(
            parameter,
            "a message type has no generic parameters",
        ));
    }
    let name = match name(&input.attrs)? {
        Some(name) => name.into_token_stream(),
        None => quote!(::core::stringify!(#ident)),
    };
    let content = match &input.data {
        Data::Struct(data) => fields(&data.fields),
        Data::Enum(data) => {
            let mut content = Vec::new();
            for variant in &data.variants {
                let ident = &variant.ident;
                let discriminant = match &variant.discriminant {
                    Some((_, discriminant)) => quote!("=", ::core::stringify!(#discriminant),),
                    None => quote!(),
                };
                let fields = fields(&variant.fields);
                content.push(quote!(
                    ::core::stringify!(#ident), #discriminant "{", #(#fields,)* "}"
                ));
            }
            content
        }
        Data::Union(_) => {
            return Err(Error::new_spanned(ident, "a message type is no union"));
        }
    };
    Ok(quote! {
        #[automatically_derived]
        impl ::shm_pool::channel::typed::Schema for #ident {
            const NAME: &'static str = #name;
            const VERSION: u64 =
                ::shm_pool::channel::typed::hash(::core::concat!(#(#content),*));
        }
    })
}

/// Returns the name that an attribute sets.
fn name(attributes: &[Attribute]) -> Result<Option<LitStr>> {
    let mut name = None;
    for attribute in attributes {
        if !attribute.path().is_ident("schema") {
            continue;
        }
        attribute.parse_nested_meta(|meta| {
            if !meta.path.is_ident("name") {
                return Err(meta.error("the only option is `name`"));
            }
            let value: LitStr = meta.value()?.parse()?;
            if value.value().is_empty() || value.value().len() > 96 {
                return Err(Error::new_spanned(value, "a name has from 1 to 96 bytes"));
            }
            name = Some(value);
            Ok(())
        })?;
    }
    Ok(name)
}

/// Returns the parts of the text of the fields, as `shm_pool::message_type!` has it.
fn fields(fields: &Fields) -> Vec<TokenStream> {
    let mut content = Vec::new();
    for (at, field) in fields.iter().enumerate() {
        let member = match &field.ident {
            Some(ident) => Member::Named(ident.clone()),
            None => Member::Unnamed(Index::from(at)),
        };
        let of = &field.ty;
        content.push(quote!(
            ::core::stringify!(#member),
            ":",
            ::core::stringify!(#of),
            ";"
        ));
    }
    content
}
