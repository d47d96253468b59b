//! Every state that can be reached, breadth first, so that the first violation has the shortest
//! history.
//!
//! A search of our own and not a library's, for three things that we need together: the graph of
//! *calm* moves (what happens when nothing goes wrong any more) is kept, so that "every operation
//! ends" is decided on it as a whole, under every order of moves; a check says whether its premise
//! was met, so that an invariant that holds for want of an occasion is seen; and each flaw of the
//! self-test is caught by name. States are kept as 128-bit fingerprints (that any two of 10^8 are
//! the same by chance has a probability of 10^-23), histories as one move a state.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::time::{Duration, Instant};

use xxhash_rust::xxh3::Xxh3;

use crate::calm::{Calm, Way};
use crate::model::{
    Budget, Invariant, MOVES, Move, Setup, State, Violation, canonical, checks, initial, make, rest,
};

/// How often the premise of each invariant was met.
#[derive(Clone, Debug)]
pub struct Tally {
    counts: Vec<u64>,
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            counts: vec![0; Invariant::ALL.len()],
        }
    }
}

impl Tally {
    pub fn met(&mut self, invariant: Invariant) {
        self.counts[invariant as usize] += 1;
    }

    #[must_use]
    pub fn of(&self, invariant: Invariant) -> u64 {
        self.counts[invariant as usize]
    }
}

/// A violation with the shortest history that leads to it.
#[derive(Clone, Debug)]
pub struct Found {
    pub violation: Violation,
    pub history: Vec<(Move, State)>,
}

/// What a search has seen.
#[derive(Clone, Debug)]
pub struct Run {
    pub states: usize,
    pub transitions: u64,
    /// Moves of the longest shortest history.
    pub depth: usize,
    /// States in which nothing happens by itself any more.
    pub at_rest: usize,
    /// Calm moves from the state that is the furthest from rest, taken the longest way.
    pub to_rest: u32,
    /// Histories that used up everything that may happen.
    pub spent: usize,
    /// Whether all that can be reached was reached.
    pub whole: bool,
    pub took: Duration,
    pub tally: Tally,
    pub found: Option<Found>,
}

/// Looks at everything, or at `limit` states.
#[must_use]
pub fn search(setup: &Setup, limit: usize) -> Run {
    let began = Instant::now();
    let mut search = Search::new(setup, limit);
    let broken = match search.all() {
        Ok(()) => search.every_way_ends(),
        Err(broken) => Err(broken),
    };
    let found = broken.err().map(|broken| search.explain(broken));
    search.run.found = found;
    search.run.states = search.came.len();
    search.run.took = began.elapsed();
    search.run
}

/// Where it was found: after these moves from a state.
struct Broken {
    violation: Violation,
    at: u32,
    moves: Vec<Move>,
}

/// A state's first history: from where, by which move.
#[derive(Clone, Copy)]
struct Came {
    from: u32,
    by: u8,
}

struct Search<'a> {
    setup: &'a Setup,
    limit: usize,
    known: HashMap<u128, u32, BuildHasherDefault<Fingerprinted>>,
    came: Vec<Came>,
    calm: Calm,
    run: Run,
}

const NOTHING_LEFT: Budget = Budget {
    verbs: 0,
    crashes: 0,
    lost: 0,
    late: 0,
    mishaps: 0,
};

impl<'a> Search<'a> {
    fn new(setup: &'a Setup, limit: usize) -> Self {
        Self {
            setup,
            limit,
            known: HashMap::default(),
            came: Vec::new(),
            calm: Calm::default(),
            run: Run {
                states: 0,
                transitions: 0,
                depth: 0,
                at_rest: 0,
                to_rest: 0,
                spent: 0,
                whole: true,
                took: Duration::ZERO,
                tally: Tally::default(),
                found: None,
            },
        }
    }

    fn all(&mut self) -> Result<(), Broken> {
        let first = canonical(initial(self.setup));
        self.known.insert(fingerprint(&first), 0);
        self.came.push(Came { from: 0, by: 0 });
        let mut level = vec![(0, first)];
        while !level.is_empty() {
            let mut next = Vec::new();
            for (at, state) in level {
                self.expand(at, &state, &mut next)?;
            }
            self.run.depth += usize::from(!next.is_empty());
            level = next;
        }
        Ok(())
    }

    fn expand(
        &mut self,
        at: u32,
        state: &State,
        next: &mut Vec<(u32, State)>,
    ) -> Result<(), Broken> {
        let broken = |moves: Vec<Move>| {
            move |violation| Broken {
                violation,
                at,
                moves,
            }
        };
        let tally = &mut self.run.tally;
        checks::state(state, self.setup, tally).map_err(broken(vec![]))?;
        self.run.spent += usize::from(state.left == NOTHING_LEFT);
        let mut at_rest = true;
        for (by, mv) in MOVES.iter().enumerate() {
            let made = make(state, *mv, self.setup).map_err(broken(vec![*mv]))?;
            let Some(taken) = made else { continue };
            checks::step(state, *mv, &taken, &mut self.run.tally).map_err(broken(vec![*mv]))?;
            self.run.transitions += 1;
            let after = canonical(taken.state);
            let to = match self.known.get(&fingerprint(&after)) {
                Some(to) => *to,
                None if self.came.len() >= self.limit => {
                    self.run.whole = false;
                    at_rest &= !mv.is_calm();
                    continue;
                }
                None => {
                    let to = u32::try_from(self.came.len()).unwrap_or(u32::MAX);
                    self.known.insert(fingerprint(&after), to);
                    let by = u8::try_from(by).unwrap_or(u8::MAX);
                    self.came.push(Came { from: at, by });
                    next.push((to, after));
                    to
                }
            };
            if mv.is_calm() {
                at_rest = false;
                self.calm.push(to);
            }
        }
        self.calm.seal();
        if at_rest {
            self.run.at_rest += 1;
            let tally = &mut self.run.tally;
            rest::at_rest(state, self.setup, tally).map_err(broken(vec![]))?;
        }
        Ok(())
    }

    /// Calm moves lead to rest from every state, in whatever order they are made.
    fn every_way_ends(&mut self) -> Result<(), Broken> {
        match self.calm.longest() {
            Way::Ends(longest) => {
                self.run.to_rest = longest;
                Ok(())
            }
            Way::GoesRound { at, through } => Err(Broken {
                violation: Violation {
                    invariant: Invariant::EveryOperationEnds,
                    how: format!("the last {} moves can go on for ever", through.len()),
                },
                at,
                moves: self.moves_through(at, &through),
            }),
        }
    }

    fn moves_through(&self, at: u32, through: &[u32]) -> Vec<Move> {
        let mut state = self.state_of(at);
        let mut moves = Vec::new();
        for to in through {
            let found = MOVES.iter().filter(|mv| mv.is_calm()).find_map(|mv| {
                let after = canonical(make(&state, *mv, self.setup).ok()??.state);
                (self.known.get(&fingerprint(&after)) == Some(to)).then_some((*mv, after))
            });
            let Some((mv, after)) = found else { break };
            moves.push(mv);
            state = after;
        }
        moves
    }

    fn moves_to(&self, mut at: u32) -> Vec<Move> {
        let mut moves = Vec::new();
        while at != 0 {
            let came = self.came[at as usize];
            moves.push(MOVES[usize::from(came.by)]);
            at = came.from;
        }
        moves.reverse();
        moves
    }

    fn state_of(&self, at: u32) -> State {
        let first = canonical(initial(self.setup));
        let moves = self.moves_to(at);
        (moves.into_iter()).fold(first, |state, mv| match make(&state, mv, self.setup) {
            Ok(Some(taken)) => canonical(taken.state),
            Ok(None) | Err(_) => state,
        })
    }

    fn explain(&self, broken: Broken) -> Found {
        let mut moves = self.moves_to(broken.at);
        moves.extend(broken.moves);
        let mut state = canonical(initial(self.setup));
        let mut history = Vec::new();
        for mv in moves {
            history.push((mv, state.clone()));
            if let Ok(Some(taken)) = make(&state, mv, self.setup) {
                state = canonical(taken.state);
            }
        }
        history.push((Move::Vanish, state));
        Found {
            violation: broken.violation,
            history,
        }
    }
}

fn fingerprint(state: &State) -> u128 {
    let mut hasher = Xxh3::new();
    state.hash(&mut hasher);
    hasher.digest128()
}

/// A fingerprint is a hash already.
#[derive(Default)]
struct Fingerprinted(u64);

impl Hasher for Fingerprinted {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for (at, byte) in bytes.iter().take(8).enumerate() {
            self.0 ^= u64::from(*byte) << (8 * at);
        }
    }

    #[expect(clippy::cast_possible_truncation, reason = "half of it is enough")]
    fn write_u128(&mut self, fingerprint: u128) {
        self.0 = fingerprint as u64;
    }
}
