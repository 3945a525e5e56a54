-- A number as BigQuery makes a STRING of it ("Conversion functions", CAST AS STRING): a FLOAT64 in as few digits as give it back,
-- a NUMERIC without trailing zeros. DuckDB tells the type of x when it binds the macro.
CREATE MACRO _string_of(x) AS CASE
    WHEN typeof(x) IN ('DOUBLE', 'FLOAT') THEN CASE
        WHEN NOT isfinite(TRY_CAST(x AS DOUBLE)) THEN x::VARCHAR
        WHEN TRY_CAST(x AS DOUBLE) = 0 THEN '0'
        WHEN printf('%.15g', TRY_CAST(x AS DOUBLE))::DOUBLE = TRY_CAST(x AS DOUBLE) THEN printf('%.15g', TRY_CAST(x AS DOUBLE))
        ELSE printf('%.17g', TRY_CAST(x AS DOUBLE))
    END
    WHEN typeof(x) LIKE 'DECIMAL%' AND contains(x::VARCHAR, '.') THEN rtrim(rtrim(x::VARCHAR, '0'), '.')
    ELSE x::VARCHAR
END;

-- TO_JSON_STRING of a value that has no parts ("JSON functions", JSON encodings): what a double cannot hold is a string.
CREATE MACRO _json_scalar(x) AS coalesce(CASE
    WHEN typeof(x) IN ('DOUBLE', 'FLOAT') AND NOT isfinite(TRY_CAST(x AS DOUBLE)) THEN CASE x::VARCHAR
        WHEN 'nan' THEN '"NaN"' WHEN 'inf' THEN '"Infinity"' ELSE '"-Infinity"'
    END
    WHEN typeof(x) IN ('DOUBLE', 'FLOAT') THEN bq.main._string_of(x)
    WHEN typeof(x) LIKE 'DECIMAL%' OR typeof(x) LIKE '%INT' OR typeof(x) = 'INTEGER' THEN CASE
        WHEN contains(bq.main._string_of(x), '.') OR abs(TRY_CAST(x AS HUGEINT)) > 9007199254740992
        THEN '"' || bq.main._string_of(x) || '"'
        ELSE bq.main._string_of(x)
    END
    WHEN typeof(x) = 'TIMESTAMP WITH TIME ZONE' THEN '"' || replace(regexp_replace(x::VARCHAR, '[+]00$', 'Z'), ' ', 'T') || '"'
    WHEN typeof(x) = 'TIMESTAMP' THEN '"' || replace(x::VARCHAR, ' ', 'T') || '"'
    WHEN typeof(x) = 'BLOB' THEN '"' || base64(TRY_CAST(x AS BLOB)) || '"'
    ELSE to_json(x)::VARCHAR
END, 'null');
