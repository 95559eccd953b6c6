//! The texts of errors in the words of a binding for another language.

#![forbid(unsafe_code)]

use crate::channel::{ChannelError, RecvError, SendErrorKind};
use crate::error::{Advice, BuildError, Explain};
use crate::owner::limits::{AllocError, CapacityError, ShareError};
use crate::peer::error::AttachError;
use crate::protocol::descriptor::DescriptorError;
use std::error::Error as StdError;
use std::fmt;
use std::iter;

/// The texts of an error and of its causes in one line, with advice in the words of a binding.
#[doc(hidden)]
pub fn text_in(error: &(dyn StdError + 'static), words: fn(Advice) -> &'static str) -> String {
    let causes = iter::successors(Some(error), |&cause| cause.source());
    let texts: Vec<String> = causes
        .map(|error| Worded(error, words).to_string())
        .collect();
    texts.join(": ")
}

struct Worded<'a>(&'a (dyn StdError + 'static), fn(Advice) -> &'static str);

impl fmt::Display for Worded<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(error) = explain(self.0) else {
            return write!(f, "{}", self.0);
        };
        error.write_facts(f)?;
        match error.find_advice() {
            Some(advice) => write!(f, "; {}", self.1(advice)),
            None => Ok(()),
        }
    }
}

/// Returns the parts of an error, if it is one of this crate that has advice.
fn explain<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a dyn Explain> {
    macro_rules! first_of {
        ($($kind:ty)+) => {$(
            if let Some(error) = error.downcast_ref::<$kind>() {
                return Some(error);
            }
        )+};
    }
    // The boxed causes of other errors.
    if let Some(error) = error.downcast_ref::<Box<ChannelError>>() {
        return Some(&**error);
    }
    if let Some(error) = error.downcast_ref::<Box<AllocError>>() {
        return Some(&**error);
    }
    first_of! {
        BuildError AllocError ShareError AttachError ChannelError SendErrorKind RecvError
        CapacityError DescriptorError
    }
    None
}
