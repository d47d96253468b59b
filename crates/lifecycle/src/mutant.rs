//! Seeded defects of the real code, to prove that the simulation bites. Compiled in with the feature
//! `mutants` alone, which no release has; one at a time is chosen at start.

macro_rules! mutants {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Mutant { $($(#[doc = $doc])+ $name,)+ }

        impl Mutant {
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)+ }
            }
        }
    };
}

mutants! {
    /// A start or a resume keeps the incarnation.
    ReuseIncarnation,
    /// A delete that is accepted does not say that the sandbox is to go.
    DeleteWithoutWish,
    /// A sandbox that is being deleted can be woken.
    WakeWhileDeleting,
    /// A cold start is told as memory.
    ColdToldAsMemory,
    /// Compute that is gone takes the record with it.
    LossMakesTombstone,
    /// What runs is not counted.
    CapacityIgnored,
    /// A lost reply is taken for success.
    LostReplyIsSuccess,
    /// A delete is told before it is done.
    DeleteNotDone,
    /// Memory is kept while the supervisor is attached.
    SkipDetach,
    /// What cannot be told is taken for absence.
    UnknownIsAbsent,
    /// Calls are let in while a suspend runs.
    GateStaysOpen,
    /// Whatever credentials are shown are good.
    AnyCredentials,
    /// What was left unfinished is not taken up.
    RecoverNothing,
    /// A read wakes what sleeps.
    ReadWakes,
    /// Keys are not remembered.
    ForgetKeys,
    /// Its compute changes behind the gateway's back, and nobody looks.
    LossUnseen,
}

#[cfg(feature = "mutants")]
static CHOSEN: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(u8::MAX);

/// Switches one on, and every other off.
#[cfg(feature = "mutants")]
pub fn choose(mutant: Option<Mutant>) {
    let number = mutant.map_or(u8::MAX, |mutant| mutant as u8);
    CHOSEN.store(number, std::sync::atomic::Ordering::Relaxed);
}

/// Whether the code is to be wrong here.
#[cfg(feature = "mutants")]
#[must_use]
pub fn is_on(mutant: Mutant) -> bool {
    CHOSEN.load(std::sync::atomic::Ordering::Relaxed) == mutant as u8
}

/// What is right, or what is wrong where this defect is chosen.
#[cfg(feature = "mutants")]
pub(crate) fn mutated<T>(mutant: Mutant, right: T, wrong: T) -> T {
    if is_on(mutant) { wrong } else { right }
}

#[cfg(not(feature = "mutants"))]
#[must_use]
#[inline(always)]
pub const fn is_on(_: Mutant) -> bool {
    false
}

#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub(crate) fn mutated<T>(_: Mutant, right: T, _: T) -> T {
    right
}
