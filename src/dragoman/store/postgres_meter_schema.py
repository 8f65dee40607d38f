"""The meter as tables and functions of PostgreSQL: the same answers as tenancy/counters.py, by the server's clock.

A call locks processes, leases and counters in this order, each by name, so that calls wait for each other and never
deadlock. Operations and results are the records of store/meter.py as JSON.
"""

METER_SCHEMA = """
    CREATE TABLE dragoman.meter_counters (
        counter    TEXT COLLATE "C" PRIMARY KEY,
        spent      BIGINT NOT NULL DEFAULT 0,
        reserved   BIGINT NOT NULL DEFAULT 0,
        running    BIGINT NOT NULL DEFAULT 0,
        is_known   BOOLEAN NOT NULL DEFAULT FALSE,
        is_touched BOOLEAN NOT NULL DEFAULT FALSE,
        level      NUMERIC,
        capacity   BIGINT NOT NULL DEFAULT 0,
        at_ms      BIGINT NOT NULL DEFAULT 0
    ) WITH (fillfactor = 50);
    CREATE TABLE dragoman.meter_leases (
        lease       TEXT COLLATE "C" PRIMARY KEY,
        process     TEXT NOT NULL,
        state       SMALLINT NOT NULL,
        at_ms       BIGINT NOT NULL,
        holds       JSONB NOT NULL,
        amounts     JSONB NOT NULL,
        charge      TEXT NOT NULL,
        last_charge TEXT NOT NULL
    ) WITH (fillfactor = 70);
    CREATE INDEX meter_leases_by_process ON dragoman.meter_leases (process);
    CREATE TABLE dragoman.meter_processes (
        process      TEXT COLLATE "C" PRIMARY KEY,
        beats        BIGINT NOT NULL,
        at_ms        BIGINT NOT NULL,
        is_collected BOOLEAN NOT NULL
    );

    CREATE FUNCTION dragoman.meter_fill(held dragoman.meter_counters, capacity bigint, now_ms bigint)
    RETURNS numeric LANGUAGE sql IMMUTABLE AS $$
        SELECT CASE WHEN held.level IS NULL THEN capacity::numeric * 60000
            ELSE greatest(filled + (capacity::numeric - held.capacity) * 60000, least(filled, 0)) END
        FROM least(
            held.level + greatest(0, now_ms - held.at_ms)::numeric * held.capacity, held.capacity::numeric * 60000
        ) AS filled
    $$;

    CREATE FUNCTION dragoman.meter_refusal(holds jsonb, own text[], now_ms bigint)
    RETURNS jsonb LANGUAGE plpgsql AS $$
    DECLARE
        hold jsonb;
        at integer := -1;
        held dragoman.meter_counters;
        most bigint;
        amount bigint;
        is_strict boolean;
        has_it boolean;
        level numeric;
        wait_ms numeric;
        missing text[] := '{}';
        waiting jsonb;  -- what reservations refuse; what is spent refuses before
    BEGIN
        FOR hold IN SELECT value FROM jsonb_array_elements(holds) LOOP
            at := at + 1;
            SELECT * INTO held FROM dragoman.meter_counters WHERE counter = hold ->> 0;
            most := (hold ->> 2)::bigint;
            amount := (hold ->> 3)::bigint;
            is_strict := coalesce((hold ->> 4)::boolean, FALSE);
            has_it := (hold ->> 0) = ANY (own);
            IF held.counter IS NULL THEN
                RETURN '["m", []]';  -- it was removed just now
            END IF;
            IF (hold ->> 1)::integer >= 2 THEN
                IF NOT held.is_known THEN
                    missing := missing || (hold ->> 0);
                    CONTINUE;
                END IF;
                IF held.spent >= most THEN
                    RETURN jsonb_build_array('r', at, held.spent, held.reserved, 0, TRUE, FALSE);
                END IF;
                IF (hold ->> 1)::integer = 3 OR held.spent::numeric + held.reserved + amount <= most THEN
                    CONTINUE;
                END IF;
                IF is_strict AND held.spent::numeric + amount > most THEN
                    RETURN jsonb_build_array('r', at, held.spent, held.reserved, 0, TRUE, FALSE);
                END IF;
                IF is_strict OR held.running > has_it::integer THEN
                    waiting := coalesce(waiting, jsonb_build_array('r', at, held.spent, held.reserved, 0, FALSE, TRUE));
                END IF;
            ELSIF most = 0 THEN
                RETURN jsonb_build_array('r', at, 0, 0, 0, TRUE, FALSE);
            ELSIF (hold ->> 1)::integer = 1 THEN
                IF held.running >= most AND NOT has_it THEN
                    RETURN jsonb_build_array('r', at, held.running, 0, 1000, FALSE, FALSE);
                END IF;
            ELSE
                IF held.at_ms > now_ms THEN  -- the clock was set back: it is filled from now on, not from then
                    UPDATE dragoman.meter_counters SET at_ms = now_ms WHERE counter = held.counter;
                END IF;
                level := dragoman.meter_fill(held, most, now_ms);
                wait_ms := ceil((least(amount, most)::numeric * 60000 - level) / most);
                IF wait_ms > 0 THEN
                    RETURN jsonb_build_array('r', at, most - floor(level / 60000), 0, wait_ms, FALSE, FALSE);
                END IF;
            END IF;
        END LOOP;
        RETURN CASE WHEN missing = '{}' THEN waiting ELSE jsonb_build_array('m', to_jsonb(missing)) END;
    END
    $$;

    CREATE FUNCTION dragoman.meter_take(holds jsonb, now_ms bigint) RETURNS void LANGUAGE plpgsql AS $$
    DECLARE
        hold jsonb;
    BEGIN
        FOR hold IN SELECT value FROM jsonb_array_elements(holds) LOOP
            CASE (hold ->> 1)::integer
            WHEN 2 THEN
                UPDATE dragoman.meter_counters SET reserved = reserved + (hold ->> 3)::bigint, running = running + 1
                WHERE counter = hold ->> 0;
            WHEN 1 THEN
                UPDATE dragoman.meter_counters SET running = running + 1, at_ms = now_ms
                WHERE counter = hold ->> 0;
            WHEN 0 THEN
                UPDATE dragoman.meter_counters AS held
                SET level = dragoman.meter_fill(held, (hold ->> 2)::bigint, now_ms)
                        - (hold ->> 3)::numeric * 60000,
                    capacity = (hold ->> 2)::bigint, at_ms = now_ms
                WHERE counter = hold ->> 0;
            ELSE NULL;
            END CASE;
        END LOOP;
    END
    $$;

    CREATE FUNCTION dragoman.meter_remaining(holds jsonb) RETURNS jsonb LANGUAGE sql STABLE AS $$
        SELECT jsonb_build_array('y', coalesce(jsonb_agg(
            CASE (hold ->> 1)::integer
            WHEN 0 THEN floor(coalesce(level, 0) / 60000)
            WHEN 1 THEN (hold ->> 2)::numeric - running
            WHEN 2 THEN (hold ->> 2)::numeric - spent - reserved
            ELSE (hold ->> 2)::numeric - spent END
            ORDER BY number), '[]'))
        FROM jsonb_array_elements(holds) WITH ORDINALITY AS listed (hold, number)
        JOIN dragoman.meter_counters ON counter = hold ->> 0
    $$;

    CREATE FUNCTION dragoman.meter_give_back(holds jsonb, amounts jsonb, now_ms bigint)
    RETURNS void LANGUAGE plpgsql AS $$
    DECLARE
        hold jsonb;
        taken numeric;
    BEGIN
        FOR hold IN SELECT value FROM jsonb_array_elements(holds) LOOP
            CASE (hold ->> 1)::integer
            WHEN 2 THEN
                UPDATE dragoman.meter_counters SET reserved = reserved - (hold ->> 3)::bigint, running = running - 1
                WHERE counter = hold ->> 0;
            WHEN 1 THEN
                UPDATE dragoman.meter_counters SET running = running - 1 WHERE counter = hold ->> 0;
            WHEN 0 THEN
                taken := (amounts ->> (hold ->> 0))::numeric - (hold ->> 3)::numeric;
                IF taken <> 0 THEN
                    UPDATE dragoman.meter_counters AS held
                    SET level = dragoman.meter_fill(held, held.capacity, now_ms) - taken * 60000, at_ms = now_ms
                    WHERE counter = hold ->> 0 AND held.level IS NOT NULL;
                END IF;
            ELSE NULL;
            END CASE;
        END LOOP;
    END
    $$;

    CREATE FUNCTION dragoman.meter_admit(operation jsonb, now_ms bigint) RETURNS jsonb LANGUAGE plpgsql AS $$
    DECLARE
        known dragoman.meter_leases;
        refusal jsonb;
    BEGIN
        SELECT * INTO known FROM dragoman.meter_leases WHERE lease = operation ->> 1;
        IF FOUND THEN
            RETURN CASE known.state WHEN 0 THEN dragoman.meter_remaining(operation -> 3) ELSE '["g"]' END;
        END IF;
        IF EXISTS (SELECT FROM dragoman.meter_processes WHERE process = operation ->> 2 AND is_collected) THEN
            RETURN '["g"]';
        END IF;
        refusal := dragoman.meter_refusal(operation -> 3, '{}', now_ms);
        IF refusal IS NOT NULL THEN
            RETURN refusal;
        END IF;
        INSERT INTO dragoman.meter_leases VALUES
            (operation ->> 1, operation ->> 2, 0, now_ms, operation -> 3, '{}', operation ->> 6, '')
            ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN
            RETURN '["g"]';
        END IF;
        PERFORM dragoman.meter_take(operation -> 3, now_ms);
        RETURN dragoman.meter_remaining(operation -> 3);
    END
    $$;

    CREATE FUNCTION dragoman.meter_settle(operation jsonb, now_ms bigint) RETURNS jsonb LANGUAGE plpgsql AS $$
    DECLARE
        known dragoman.meter_leases;
        has_row boolean := coalesce(operation ->> 3, '') <> ''
            OR EXISTS (SELECT FROM jsonb_each_text(operation -> 2) WHERE value <> '0');
        spent_now record;
    BEGIN
        SELECT * INTO known FROM dragoman.meter_leases WHERE lease = operation ->> 1;
        IF NOT FOUND THEN
            INSERT INTO dragoman.meter_leases VALUES (operation ->> 1, '', 2, now_ms, '[]', '{}', '', '')
                ON CONFLICT DO NOTHING;
            RETURN '["g"]';
        END IF;
        IF known.state = 1 AND NOT EXISTS (
            SELECT FROM dragoman.meter_processes WHERE process = known.process AND is_collected
        ) THEN
            RETURN '["d"]';
        END IF;
        IF known.state <> 0 THEN
            RETURN '["g"]';
        END IF;
        PERFORM dragoman.meter_give_back(known.holds, operation -> 2, now_ms);
        FOR spent_now IN SELECT key, value FROM jsonb_each_text(operation -> 2) WHERE value <> '0' LOOP
            UPDATE dragoman.meter_counters SET spent = spent + spent_now.value::bigint, is_touched = TRUE
            WHERE counter = spent_now.key AND is_known;
        END LOOP;
        UPDATE dragoman.meter_leases
        SET state = CASE WHEN has_row THEN 1 ELSE 2 END, amounts = operation -> 2,
            last_charge = coalesce(operation ->> 3, ''), at_ms = now_ms
        WHERE lease = known.lease;
        RETURN '["d"]';
    END
    $$;

    CREATE FUNCTION dragoman.meter_correct(operation jsonb, now_ms bigint) RETURNS jsonb LANGUAGE plpgsql AS $$
    DECLARE
        known dragoman.meter_leases;
        hold jsonb;
        more bigint;
        raised jsonb := '[]';
    BEGIN
        SELECT * INTO known FROM dragoman.meter_leases WHERE lease = operation ->> 1 AND state = 0;
        IF NOT FOUND THEN
            RETURN '["g"]';
        END IF;
        FOR hold IN SELECT value FROM jsonb_array_elements(known.holds) LOOP
            more := coalesce((operation -> 2 ->> (hold ->> 0))::bigint, 0) - (hold ->> 3)::bigint;
            IF more > 0 THEN
                PERFORM dragoman.meter_add(hold, more);
                hold := jsonb_set(hold, '{3}', to_jsonb((hold ->> 3)::bigint + more));
            END IF;
            raised := raised || jsonb_build_array(hold);
        END LOOP;
        UPDATE dragoman.meter_leases SET holds = raised WHERE lease = known.lease;
        RETURN '["d"]';
    END
    $$;

    CREATE FUNCTION dragoman.meter_add(hold jsonb, more bigint) RETURNS void LANGUAGE plpgsql AS $$
    BEGIN
        UPDATE dragoman.meter_counters SET reserved = reserved + more
        WHERE counter = hold ->> 0 AND (hold ->> 1)::integer = 2;
        UPDATE dragoman.meter_counters SET level = level - more::numeric * 60000
        WHERE counter = hold ->> 0 AND (hold ->> 1)::integer = 0;
    END
    $$;

    CREATE FUNCTION dragoman.meter_change(operation jsonb, now_ms bigint) RETURNS jsonb LANGUAGE plpgsql AS $$
    DECLARE
        known dragoman.meter_leases;
        dropped jsonb;
        kept jsonb;
        own text[];
        hold jsonb;
        old jsonb;
        refusal jsonb;
    BEGIN
        SELECT * INTO known FROM dragoman.meter_leases WHERE lease = operation ->> 1 AND state = 0;
        IF NOT FOUND THEN
            RETURN '["g"]';
        END IF;
        SELECT coalesce(jsonb_agg(value) FILTER (WHERE operation -> 2 ? (value ->> 0) AND value ->> 1 <> '0'), '[]'),
            coalesce(jsonb_agg(value) FILTER (WHERE NOT operation -> 2 ? (value ->> 0) OR value ->> 1 = '0'), '[]'),
            coalesce(array_agg(value ->> 0)
                FILTER (WHERE NOT operation -> 2 ? (value ->> 0) OR value ->> 1 = '0'), '{}')
        INTO dropped, kept, own FROM jsonb_array_elements(known.holds);
        PERFORM dragoman.meter_give_back(dropped, '{}', now_ms);
        refusal := dragoman.meter_refusal(operation -> 3, own, now_ms);
        IF refusal IS NOT NULL THEN
            PERFORM dragoman.meter_take(dropped, now_ms);
            RETURN refusal;
        END IF;
        FOR hold IN SELECT value FROM jsonb_array_elements(operation -> 3) LOOP
            IF (hold ->> 0) = ANY (own) THEN
                PERFORM dragoman.meter_add(hold, (hold ->> 3)::bigint);
                SELECT value INTO old FROM jsonb_array_elements(kept) WHERE value ->> 0 = hold ->> 0;
                SELECT jsonb_agg(value) INTO kept FROM jsonb_array_elements(kept) WHERE value ->> 0 <> hold ->> 0;
                hold := jsonb_set(hold, '{3}', to_jsonb((hold ->> 3)::bigint + (old ->> 3)::bigint));
            ELSE
                PERFORM dragoman.meter_take(jsonb_build_array(hold), now_ms);
            END IF;
            kept := coalesce(kept, '[]') || jsonb_build_array(hold);
        END LOOP;
        UPDATE dragoman.meter_leases SET holds = kept WHERE lease = known.lease;
        RETURN dragoman.meter_remaining(operation -> 3);
    END
    $$;

    CREATE FUNCTION dragoman.meter_beat(operation jsonb, now_ms bigint) RETURNS jsonb LANGUAGE plpgsql AS $$
    DECLARE
        unnamed text;
    BEGIN
        INSERT INTO dragoman.meter_processes AS old VALUES (operation ->> 1, 1, now_ms, FALSE)
            ON CONFLICT (process) DO UPDATE SET beats = old.beats + 1, at_ms = now_ms WHERE NOT old.is_collected;
        IF NOT FOUND THEN
            RETURN '["g"]';
        END IF;
        IF operation -> 2 IS NOT NULL AND operation -> 2 <> 'null' THEN
            FOR unnamed IN
                SELECT lease FROM dragoman.meter_leases WHERE process = operation ->> 1 AND state < 2
                    AND at_ms <= now_ms - 10000 AND NOT operation -> 2 ? lease ORDER BY lease
            LOOP
                PERFORM dragoman.meter_settle(jsonb_build_array('s', unnamed, '{}'::jsonb), now_ms);
                UPDATE dragoman.meter_leases SET state = 2, at_ms = now_ms WHERE lease = unnamed;
            END LOOP;
        END IF;
        RETURN '["d"]';
    END
    $$;

    CREATE FUNCTION dragoman.meter_lock(operations jsonb) RETURNS void LANGUAGE plpgsql AS $$
    DECLARE
        leases text[];
        counters text[];
    BEGIN
        SELECT array_agg(name) INTO leases FROM (
            SELECT value ->> 1 AS name FROM jsonb_array_elements(operations) WHERE value ->> 0 IN ('s', 'c', 'h', 'a')
            UNION SELECT jsonb_array_elements_text(value -> 1)
                FROM jsonb_array_elements(operations) WHERE value ->> 0 = 'w'
            UNION SELECT lease FROM jsonb_array_elements(operations) AS asked (operation)
                JOIN dragoman.meter_leases ON process = operation ->> 1 AND state < 2 AND NOT operation -> 2 ? lease
                WHERE operation ->> 0 = 'b' AND jsonb_typeof(operation -> 2) = 'array'
        ) AS named;
        PERFORM FROM dragoman.meter_leases WHERE lease = ANY (leases) ORDER BY lease FOR UPDATE;
        SELECT array_agg(DISTINCT (hold ->> 0) COLLATE "C") INTO counters
        FROM jsonb_array_elements(operations) AS asked (operation),
            jsonb_array_elements(CASE WHEN operation ->> 0 IN ('a', 'h') THEN operation -> 3 END) AS listed (hold);
        INSERT INTO dragoman.meter_counters (counter)
            SELECT name FROM unnest(counters) AS name
            WHERE NOT EXISTS (SELECT FROM dragoman.meter_counters WHERE counter = name)
            ORDER BY name COLLATE "C" ON CONFLICT DO NOTHING;
        SELECT array_agg(name) INTO counters FROM (
            SELECT unnest(counters) AS name
            UNION SELECT hold ->> 0 FROM dragoman.meter_leases, jsonb_array_elements(holds) AS listed (hold)
                WHERE lease = ANY (leases) AND state = 0
            UNION SELECT jsonb_object_keys(CASE WHEN value ->> 0 = 's' THEN value -> 2 END)
                FROM jsonb_array_elements(operations)
        ) AS named;
        PERFORM FROM dragoman.meter_counters WHERE counter = ANY (counters) ORDER BY counter FOR UPDATE;
    END
    $$;

    CREATE FUNCTION dragoman.meter_apply(operations jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
    DECLARE
        now_ms bigint;
        operation jsonb;
        result jsonb;
        results jsonb := '[]';
    BEGIN
        PERFORM dragoman.meter_lock(operations);
        now_ms := (extract(epoch FROM clock_timestamp()) * 1000)::bigint;
        FOR operation IN SELECT value FROM jsonb_array_elements(operations) LOOP
            CASE operation ->> 0
            WHEN 'a' THEN result := dragoman.meter_admit(operation, now_ms);
            WHEN 's' THEN result := dragoman.meter_settle(operation, now_ms);
            WHEN 'c' THEN result := dragoman.meter_correct(operation, now_ms);
            WHEN 'h' THEN result := dragoman.meter_change(operation, now_ms);
            WHEN 'b' THEN result := dragoman.meter_beat(operation, now_ms);
            WHEN 'w' THEN
                UPDATE dragoman.meter_leases SET state = 2, at_ms = now_ms
                WHERE lease IN (SELECT jsonb_array_elements_text(operation -> 1)) AND state = 1;
                result := '["d"]';
            END CASE;
            results := results || jsonb_build_array(result);
        END LOOP;
        RETURN results;
    END
    $$;
"""
