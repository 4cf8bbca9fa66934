"""Files: written atomically, read with checks, never unpickled."""
