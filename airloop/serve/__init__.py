"""The policy behind the HTTP interface that agents speak: every token that is sampled through it can be trained."""
